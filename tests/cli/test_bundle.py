"""The bundle: what a maintainer needs is in it, what is nobody's business is not, and nothing is written unasked."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import sqlite3
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TRANCHE, TestMachine

SECRET = "hunter2-planted"


@pytest.fixture
def machine(make_machine: MakeMachine) -> TestMachine:
    """Two GPUs where a secret is wherever somebody may have written one."""
    machine = make_machine("A100-40GB", "A30-24GB")
    os.environ["TRANCHE_TEST_PLANTED"] = SECRET
    try:
        machine.hold("--mig-profile", "1g.5gb", script=f": --password={SECRET}; while :; do sleep 0.05; done")
        machine.hold("--gpus", "1", "--gpu-model", "A30", script=f": {SECRET}; while :; do sleep 0.05; done")
        machine.wait_in_queue("--gpus", "1", "--gpu-model", "A30")
    finally:
        del os.environ["TRANCHE_TEST_PLANTED"]
    device = machine.json("gpus")["gpus"][0]["slices"][0]["devices"][0]["uuid"]
    machine.machine.inject_busy(device, pid=5004242, name=f"train --token={SECRET}")
    machine.tranche("run", "--gpu-memory", "4G", "--", "sh", "-c", f"exit 3 # {SECRET}", code=3)
    machine.tranche("layout", "apply", "-c", "all-disabled", code=80)
    return machine


@pytest.fixture
def plain(make_machine: MakeMachine) -> TestMachine:
    """A machine on which nothing has happened."""
    return make_machine("T4")


def opened(archive: Path) -> dict[str, bytes]:
    """Every file of an archive, without the folder that they lie in."""
    with tarfile.open(archive) as tar:
        return {
            member.name.partition("/")[2]: file.read()
            for member in tar.getmembers()
            if (file := tar.extractfile(member)) is not None
        }


def test_everything_is_in_it_but_no_secret(machine: TestMachine) -> None:
    assert SECRET in machine.tranche("ps").stdout, "the secret is where it can leak from"
    assert SECRET in machine.tranche("gpus", "-o", "json").stdout
    target = machine.folder / "bundle.tar.gz"
    machine.tranche("bundle", "--yes", "-o", str(target))
    files = opened(target)
    assert {name for name, content in files.items() if SECRET.encode() in content} == set()
    assert {
        "ledger.db",
        "journal.json",
        "version.json",
        "doctor.json",
        "gpus.json",
        "ps.json",
        "events.json",
        "layout.json",
    } <= (files.keys())
    assert stat.S_IMODE(target.stat().st_mode) == 0o600

    held = json.loads(files["ps.json"])
    assert len(held["allocations"]) == 2
    assert all(each["command"].endswith(" more words)") for each in held["allocations"])
    assert held["waiters"][0]["request"]["gpus"] == 1
    (used,) = (each for each in json.loads(files["gpus.json"])["gpus"][0]["slices"] if each["processes"])
    assert "train (1 more words)" in [process["name"] for process in used["processes"]]
    journal = json.loads(files["journal.json"])
    assert {step["step"]["action"] for plan in journal for step in plan["steps"]} >= {
        "SetMigMode",
        "CreateInstance",
    } or journal
    kinds = [event["type"] for event in json.loads(files["events.json"])["events"]]
    assert "Granted" in kinds
    assert "Released" in kinds


def test_the_ledgers_extract_is_a_ledger_without_words(machine: TestMachine) -> None:
    target = machine.folder / "bundle.tar.gz"
    machine.tranche("bundle", "--yes", "-o", str(target))
    extract = machine.folder / "extract.db"
    extract.write_bytes(opened(target)["ledger.db"])
    with sqlite3.connect(machine.ledger) as own, sqlite3.connect(extract) as copy:
        for table in ("allocations", "grants", "units", "plans", "steps", "waiters", "events", "owned_instances"):
            count = f"SELECT count(*) FROM {table}"
            assert copy.execute(count).fetchone() == own.execute(count).fetchone(), table
        assert copy.execute("SELECT DISTINCT message FROM events").fetchall() == [("",)]
        assert copy.execute("PRAGMA user_version").fetchone() == own.execute("PRAGMA user_version").fetchone()
    own.close()
    copy.close()


def test_the_list_is_the_content_and_the_sums_are_right(machine: TestMachine) -> None:
    listed = machine.tranche("bundle", "--list").stdout
    assert list(machine.folder.glob("*.tar.gz")) == []
    target = machine.folder / "bundle.tar.gz"
    machine.tranche("bundle", "-o", str(target))
    files = opened(target)
    assert all(f"  {name}  " in listed for name in files)
    contents: dict[str, Any] = json.loads(files["contents.json"])
    assert contents["kind"] == "Bundle"
    for each in contents["files"]:
        content = files.pop(each["path"])
        assert (each["bytes"], each["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert set(files) == {"contents.json"}


def test_what_cannot_be_had_is_named(plain: TestMachine) -> None:
    plain.machine.inject_error("nvmlDeviceGetCount_v2", 999, calls=1_000_000)
    target = plain.folder / "bundle.tar.gz"
    plain.tranche("bundle", "--yes", "-o", str(target))
    left_out = {each["path"]: each["why"] for each in json.loads(opened(target)["contents.json"])["leftOut"]}
    assert left_out["gpus.json"] == "HardwareError"
    assert left_out["ledger.db"] == "there is no ledger yet"
    assert "doctor.json" not in left_out


def test_a_damaged_ledger_is_named_and_the_rest_is_there(plain: TestMachine) -> None:
    plain.tranche("run", "--gpus", "1", "-q", "--", "true")
    target = plain.folder / "bundle.tar.gz"
    for log in plain.state_dir.glob("ledger.db-*"):
        log.unlink()
    plain.ledger.write_bytes(b"no database" * 1000)
    plain.tranche("bundle", "--yes", "-o", str(target))
    files = opened(target)
    left_out = {each["path"]: each["why"] for each in json.loads(files["contents.json"])["leftOut"]}
    assert left_out["ledger.db"] == "LedgerCorrupt"
    assert files.keys() >= {"doctor.json", "layout.json", "machine.json"}


def test_an_archive_is_no_text_for_stdout(plain: TestMachine) -> None:
    assert "cannot write an archive to stdout" in plain.tranche("bundle", "--yes", "-o", "-", code=2).stderr


def test_without_a_terminal_somebody_has_to_say_so(plain: TestMachine) -> None:
    done = plain.tranche("bundle", code=2)
    assert "--yes" in done.stderr
    assert list(Path.cwd().glob("tranche-bundle-*")) == []


@pytest.mark.parametrize(("answer", "code", "written"), [("n", 130, False), ("y", 0, True)])
def test_at_a_terminal_it_asks_before_it_writes(plain: TestMachine, answer: str, code: int, written: bool) -> None:
    target = plain.folder / "bundle.tar.gz"
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        done = subprocess.run(
            [*TRANCHE, "bundle", "-o", str(target)],
            env=plain.environment,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, target.exists()) == (code, written), done.stderr
    assert f"Write these to {target}?" in done.stderr
    assert "gpus.json" in done.stdout, "listed before it is written"


def test_nothing_is_overwritten_and_no_draft_stays(plain: TestMachine) -> None:
    target = plain.folder / "bundle.tar.gz"
    target.write_text("mine")
    done = plain.tranche("bundle", "--yes", "-o", str(target), code=3)
    assert "exists already" in done.stderr
    assert target.read_text() == "mine"
    done = plain.tranche("bundle", "--yes", "-o", str(plain.folder / "none" / "x.tar.gz"), code=3)
    assert "cannot write" in done.stderr
    assert [path.name for path in plain.folder.iterdir() if "bundle" in path.name] == ["bundle.tar.gz"]


def test_an_api_server_that_does_not_answer_leaves_the_rest(plain: TestMachine) -> None:
    kubeconfig = plain.folder / "kubeconfig"
    cluster = {"clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}], "users": []}
    context = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k"}}]}
    kubeconfig.write_text(json.dumps(cluster | context))
    target = plain.folder / "bundle.tar.gz"
    done = plain.tranche("bundle", "--yes", "-o", str(target), "--cluster", f"--kubeconfig={kubeconfig}")
    assert "the bundle contains nothing from the cluster" in done.stderr
    left_out = {each["path"]: each["why"] for each in json.loads(opened(target)["contents.json"])["leftOut"]}
    assert left_out["cluster/"] == "KubernetesUnavailable"
