"""What people are used to from other tools, and how they misspell: it works, or the error says what would."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
from pathlib import Path

import click
import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TRANCHE, TestMachine, wait_until
from tranche.cli.main import root


@pytest.fixture
def machine(make_machine: MakeMachine) -> TestMachine:
    return make_machine("A30-24GB")


def test_spans_of_time_have_units(machine: TestMachine) -> None:
    machine.hold("--gpus", "1")
    done = machine.tranche("run", "--gpus", "1", "--timeout", "100ms", "-q", "--", "true", code=70)
    assert "got no share within 0.1 s" in done.stderr

    done = machine.tranche("run", "--gpus", "1", "--timeout", "soon", "--", "true", code=2)
    assert "'soon' is not a duration" in done.stderr
    assert "30s, 10m, 1h30m" in done.stderr

    done = machine.tranche("top", "--interval", "10ms", code=2)
    assert "--interval: 10ms is less than 0.1s" in done.stderr


def test_the_grace_of_a_release_has_a_unit(machine: TestMachine) -> None:
    workload = machine.hold("--gpus", "1", script="trap '' TERM; while :; do sleep 0.05; done")
    (held,) = machine.json("ps")["allocations"]
    done = machine.tranche("release", held["id"], "--terminate", "--grace", "20ms")
    assert f"after SIGKILL to pid {workload.pid}" in done.stderr


def test_a_sweep_by_xargs(machine: TestMachine, tmp_path: Path) -> None:
    (tmp_path / "rates.txt").write_text("0.1\n0.01\n0.001\n")
    sweep = ["xargs", "-a", "rates.txt", "-P", "2", "-I", "{}", *TRANCHE, "run", "--gpu-memory", "10G", "-q", "--"]
    script = "echo $CUDA_VISIBLE_DEVICES > {}; case {} in 0.01) exit 1;; esac"
    done = subprocess.run([*sweep, "sh", "-c", script], cwd=tmp_path, env=machine.environment, check=False)
    assert done.returncode == 123  # xargs: a command failed, and the others ran
    assert all((tmp_path / rate).read_text().strip() for rate in ("0.1", "0.01", "0.001"))


def test_half_a_gpu_in_percent(machine: TestMachine) -> None:
    assert machine.json("explain", "--gpu", "50%")["request"] == machine.json("explain", "--gpu", "0.5")["request"]


@pytest.mark.parametrize(
    ("arguments", "code", "meant"),
    [
        (("gpsu",), 2, "Did you mean 'gpus'"),
        (("layout", "aply"), 2, "Did you mean 'apply'?"),
        (("logs", "train"), 2, "Did you mean 'job logs'?"),
        (("quota", "--gpus", "2"), 2, "Did you mean 'policy quota'?"),
        (("run", "--gpu-memroy", "4Gi", "--", "true"), 2, "'--gpu-memory'"),
        (("layout", "plan", "-c", "all-blanced"), 11, "did you mean 'all-balanced'"),
        (("run", "--mig-profile", "1g6gb", "--", "true"), 2, "did you mean '1g.6gb' or"),
        (("profiles", "--board", "A100-40G"), 2, "did you mean A100-40GB"),
        (("--simulate", "p4d.24xlrge", "gpus"), 27, "did you mean 'p4d.24xlarge'"),
        (("--simulate", "machin", "gpus"), 27, "did you mean 'machine'"),
        (("gpus", "-o", "yaml"), 2, "-o json"),
        (("banana",), 2, "error: no such command 'banana'\n\nhint: see: tranche --help\n"),
        (("release",), 2, "error: missing argument 'ID'\n\nhint: see: tranche release --help\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_was_meant(machine: TestMachine, arguments: tuple[str, ...], code: int, meant: str) -> None:
    done = machine.tranche(*arguments, code=code, TRANCHE_SIM_ROOT=str(machine.folder))
    assert meant in done.stderr


def test_help_lists_the_commands_in_groups_without_those_that_kubernetes_starts(machine: TestMachine) -> None:
    _, *groups = re.findall(r"^(\w[\w ]+):\n((?:  .+\n)+)", f"{machine.tranche('--help').stdout}\n", re.MULTILINE)
    names = {title: re.findall(r"^  (\S+)", lines, re.MULTILINE) for title, lines in groups}
    titles = ["This machine", "Layouts", "Jobs on a cluster", "Cluster operations", "Services", "Simulator"]
    assert list(names) == titles
    everyday = ["run", "hold", "ps", "gpus", "top", "explain", "release", "events", "doctor"]
    assert names["This machine"][: len(everyday)] == everyday
    assert names["Jobs on a cluster"] == ["submit", "job"]
    listed = {name for some in names.values() for name in some}
    assert set(root.list_commands(click.Context(root))) - listed == {"agent", "controller"}


@pytest.mark.parametrize("command", [(), ("job",), ("layout",)])
def test_a_group_without_a_command_prints_its_help_as_it_is(machine: TestMachine, command: tuple[str, ...]) -> None:
    done = machine.tranche(*command, code=2)
    assert (done.stdout, done.stderr) == ("", machine.tranche(*command, "--help").stdout)


def test_a_layout_that_is_not_there_leads_to_its_plan(machine: TestMachine) -> None:
    done = machine.tranche("layout", "assert", "-c", "all-1g.6gb", code=50)
    command = done.stderr.rpartition("run: tranche ")[2].split()
    assert "create 1g.6gb at 0:1" in machine.tranche(*command).stdout


def test_a_layout_of_a_file_is_suggested(machine: TestMachine) -> None:
    file = machine.folder / "layouts.yaml"
    file.write_text("version: v1\nmig-configs: {nightly: [{devices: all, mig-enabled: false}]}\n")
    done = machine.tranche("layout", "plan", "-f", str(file), "-c", "nigthly", code=11)
    assert "hint: did you mean 'nightly'? " in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("gpus", "--no-such-option"), ("gpsu",), ("release",), ("events", "--last", "many"), ("layout", "plan", "extra")],
    ids=" ".join,
)
def test_a_wrong_command_line_is_one_json_document_where_json_is_asked(
    machine: TestMachine, arguments: tuple[str, ...]
) -> None:
    done = machine.tranche(*arguments, "-o", "json", code=2)
    assert done.stdout == ""
    error = json.loads(done.stderr)
    assert (error["kind"], error["reason"], error["exitCode"]) == ("Error", "Usage", 2)
    assert error["hint"].startswith("see: tranche")


@pytest.mark.parametrize("number", ["0", "1", "10001", "9" * 18, "9" * 40])
def test_any_number_of_events_may_be_asked_for(machine: TestMachine, number: str) -> None:
    machine.tranche("run", "--gpus", "1", "-q", "--", "true")
    assert len(machine.json("events", "--last", number)["events"]) == min(int(number), 2)


def test_a_command_that_is_no_utf_8_runs_and_is_shown(machine: TestMachine) -> None:
    script = 'printf %s "$1"'
    command = [*TRANCHE, "run", "--gpus", "1", "-q", "--", "sh", "-c", script, "sh", "caf\udce9"]
    done = subprocess.run(command, env=machine.environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf\xe9", b"")

    work = machine.start("run", "--gpus", "1", "-q", "--", "sh", "-c", "exec sleep 600", "caf\udce9")
    wait_until(lambda: bool(machine.json("ps")["allocations"]), work)
    with sqlite3.connect(machine.ledger) as db:
        assert "\ufffd" in db.execute("SELECT command FROM allocations").fetchone()[0]
    db.close()
    assert "\ufffd" in machine.tranche("ps").stdout
    assert "\ufffd" in machine.json("ps")["allocations"][0]["command"]
    assert "\ufffd" in machine.tranche("top", "--once").stdout
    machine.tranche("events")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--mig-profile", "\udcff", "--", "true"), ("run", "--gpu-model", "\udcff", "--gpus", "1", "--", "true"),
        ("run", "--gpus", "1", "--", "\udcff"), ("release", "\udcff"), ("layout", "plan", "-f", "\udcff"),
        ("layout", "plan", "-c", "\udcff"), ("--simulate", "\udcff", "ps"), ("\udcff",), ("gpus", "--\udcff"),
        ("profiles", "--gpu", "9" * 5000),
        ("profiles", "--board", "\udcff"), ("profiles", "--gpu", "\udcff"), ("sim", "destroy", "\udcff"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("output", [(), ("-o", "json")], ids=["text", "json"])
def test_words_that_are_no_utf_8_are_refused_in_words(
    machine: TestMachine, arguments: tuple[str, ...], output: tuple[str, ...]
) -> None:
    before = machine.changes()
    done = machine.tranche(*output, *arguments, code=None, TRANCHE_SIM_ROOT=str(machine.folder))
    assert done.returncode not in (0, 1)
    assert machine.changes() == before


def test_a_state_folder_that_is_no_utf_8_is_used(machine: TestMachine) -> None:
    folder = machine.folder / "caf\udce9"
    machine.tranche("--state-dir", str(folder), "run", "--gpus", "1", "-q", "--", "true")
    assert (folder / "ledger.db").exists()
    assert os.fsencode(folder).endswith(b"caf\xe9")
    machine.tranche("--state-dir", str(folder), "ps")
    assert machine.json("--state-dir", str(folder), "doctor")["healthy"]
