"""`tranche run --record` and `tranche replay`: decisions of a run, made again from what was recorded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.machines import TRANCHE, TestMachine
from tests.support import in_process
from tranche.node.files import files

CHANGED = 52


@pytest.fixture
def recording(two_a100: TestMachine, tmp_path: Path) -> Path:
    """What was decided about four requests: cut first, reuse, wait, never."""
    path = tmp_path / "decisions.jsonl"
    for arguments, code in [
        (("--mig-profile", "1g.5gb"), 0),
        (("--mig-profile", "1g.5gb"), 0),
        (("--gpus", "2", "--adopt-foreign=destroy"), 0),
        (("--gpus", "3"), 31),
    ]:
        two_a100.tranche("run", *arguments, "--record", str(path), "-q", "--", "true", code=code)
    two_a100.hold("--gpus", "1")
    two_a100.tranche("run", "--gpus", "2", "--no-wait", "-q", "--", "true", code=32, TRANCHE_RECORD=str(path))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_recorded_run_is_decided_alike(two_a100: TestMachine, recording: Path) -> None:
    assert [list(each["outcome"]) for each in lines(recording)] == [
        ["Granted"],
        ["Granted"],
        ["Granted"],
        ["Impossible"],
        ["Waiting"],
    ]
    replayed = two_a100.json("replay", str(recording))["decisions"]
    assert replayed[0]["request"] == "--mig-profile 1g.5gb"
    assert all(each["same"] for each in replayed)
    assert [each["recorded"] for each in replayed] == [each["now"] for each in replayed]
    shown = two_a100.tranche("replay", str(recording), LD_LIBRARY_PATH="").stdout
    assert shown.count("the same") == 5
    assert "of GPU 0, which was idle" in shown
    assert recording.stat().st_mode & 0o077 == 0, "commands of others are nobody's business"


def test_what_would_be_decided_otherwise_is_said(two_a100: TestMachine, recording: Path) -> None:
    records = lines(recording)
    for gpu in records[0]["question"]["view"]["node"]["gpus"]:
        gpu["lost"] = True
    recording.write_text("\n".join(map(json.dumps, records)) + "\n")
    done = two_a100.tranche("replay", str(recording), code=CHANGED)
    assert "waits: GPU 0: the driver has lost it" in done.stdout
    assert "1 of 5 decisions would be different now" in done.stderr


def test_a_record_comes_from_stdin_too(two_a100: TestMachine, recording: Path) -> None:
    with recording.open() as stream:
        subprocess.run([*TRANCHE, "replay", "-"], env=two_a100.environment, stdin=stream, check=True)


def test_a_record_that_cannot_be_written_costs_no_run(two_a100: TestMachine) -> None:
    done = two_a100.tranche("run", "--gpus", "1", "--record", "/dev/full", "--", "true")
    assert "a decision was not recorded: No space left on device" in done.stderr
    two_a100.tranche("run", "--gpus", "1", "--record", "/nowhere/file", "--", "true", code=2)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind": "Decision"}', "\x00", "[" * 100_000, "\ud800"])
def test_what_is_no_record_is_refused(two_a100: TestMachine, tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text + "\n", errors="surrogatepass")
    done = two_a100.tranche("replay", str(path), code=2)
    assert "line 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_refused(two_a100: TestMachine, tmp_path: Path) -> None:
    two_a100.tranche("replay", str(tmp_path / "missing"), code=2)
    two_a100.tranche("replay", str(tmp_path), code=2)


def test_a_record_may_come_through_a_pipe(two_a100: TestMachine, recording: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [*TRANCHE, "replay", str(pipe), "-o", "json"]
    with subprocess.Popen(command, env=two_a100.environment, stdout=subprocess.PIPE) as replaying:
        pipe.write_bytes(recording.read_bytes())
        assert len(json.loads(replaying.communicate()[0])["decisions"]) == 5
    assert replaying.returncode == 0


def test_a_pipe_that_nobody_writes_is_given_up(
    two_a100: TestMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe")
    done = in_process.run(["replay", str(tmp_path / "pipe")], two_a100.environment)
    assert (done.fault, done.code) == ("", 2)
    assert "pipe: nothing was written to it for 0.05 s" in done.stderr


def test_a_pipe_that_nobody_reads_is_no_record(two_a100: TestMachine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = two_a100.tranche("run", "--gpus", "1", "--record", str(tmp_path / "pipe"), "--", "true", code=2)
    assert "cannot record decisions in" in done.stderr
