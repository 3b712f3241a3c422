"""Whatever is asked wrongly, or of a machine in a bad state: a clear error of its own code, and nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest

from tests.cli.conftest import MakeMachine
from tests.local.test_fractions import end_daemons
from tests.machines import Completed, TestMachine, machine_in, needs_root
from tests.support.in_process import NOBODY
from tranche.node.state.register_place import settle_register

COMMAND = ("--", "true")


def ledger_rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the ledger but the counters of SQLite's own."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        found = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names if name != "sqlite_sequence"}
    db.close()
    return found


def says(done: Completed, message: str, *, hint: bool = True) -> None:
    """The error is on stderr alone, with its hint."""
    assert done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert message in first
    if hint:
        assert any(line.startswith("hint: ") and len(line) > len("hint: ") for line in rest), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("run", "--gpu", "0", *COMMAND), 2, "must be more than 0"),
        (("run", "--gpu", "1.5", *COMMAND), 2, "asks for more than one GPU"),
        (("run", "--gpu", "-1", *COMMAND), 2, "'-1' is not a share"),
        (("run", "--gpu", "half", *COMMAND), 2, "'half' is not a share"),
        (("run", "--gpu", "0.5", "--compute", "0", *COMMAND), 2, "'0' is not a compute ceiling"),
        (("run", "--gpu", "0.5", "--compute", "101", *COMMAND), 2, "'101' is not a compute ceiling"),
        (("run", "--gpu", "0.5", "--count", "3", *COMMAND), 31, "asks for 3 GPUs, but this machine has 2"),
        (
            ("run", "--gpu", "0.5", "--isolation", "firm", *COMMAND),
            2,
            "--isolation must be 'hard', 'soft', 'none' or 'any'",
        ),
        (("run", "--gpus", "0", *COMMAND), 2, "'0' is not a number of whole GPUs"),
        (("run", "--gpus", "3", *COMMAND), 31, "this machine has 2"),
        (("run", "--gpu-memory", "500G", *COMMAND), 31, "more than any GPU on this machine has"),
        (("run", "--gpu-memory", "0", *COMMAND), 2, "must be more than 0"),
        (("run", "--gpu-memory", "16", *COMMAND), 2, "the amount of memory '16' has no unit"),
        (("run", "--gpu-memory", "4X", *COMMAND), 2, "'4X' is not an amount of memory"),
        (("run", "--mig-profile", "1g.6gb", *COMMAND), 30, "no GPU on this machine offers 1g.6gb"),
        (("run", "--mig-profile", "banana", *COMMAND), 2, "'banana' is not a MIG profile name"),
        (("run", "--gpus", "1", "--gpu", "0.5", *COMMAND), 2, "exactly one of"),
        (("run", *COMMAND), 2, "exactly one of"),
        (("run", "--gpus", "1"), 2, "no command to run"),
        (
            ("run", "--gpus", "1", "--no-wait", "--timeout", "9s", *COMMAND),
            2,
            "--no-wait and --timeout cannot be combined",
        ),
        (("run", "--gpus", "1", "--", "no-such-command"), 127, "'no-such-command' is not an executable command"),
        (("--simulate", "no-such-machine", "gpus"), 27, "no simulated machine 'no-such-machine'"),
        (("release", "00000000"), 34, "no allocation or waiting request 00000000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_request_changes_nothing(
    two_a100: TestMachine, arguments: tuple[str, ...], code: int, message: str
) -> None:
    two_a100.cut_by_hand(0, "9")
    two_a100.tranche("ps")
    before = two_a100.changes(), ledger_rows(two_a100.ledger)
    done = two_a100.tranche(*arguments, code=code, TRANCHE_SIM_ROOT=str(two_a100.folder))
    says(done, message)
    assert (two_a100.changes(), ledger_rows(two_a100.ledger)) == before


def test_a_model_that_is_not_there_names_those_that_are(two_a100: TestMachine) -> None:
    done = two_a100.tranche("run", "--gpus", "1", "--gpu-model", "B200", *COMMAND, code=23)
    says(done, "it has: NVIDIA A100-SXM4-40GB", hint=False)


def test_a_part_of_a_gpu_without_mig_is_refused_by_name(make_machine: MakeMachine) -> None:
    machine = make_machine("T4")
    hard = machine.tranche("run", "--gpu-memory", "2G", "--isolation", "hard", *COMMAND, code=33)
    says(hard, "does not support MIG, and a part with hard isolation requires MIG")


def test_shares_that_add_up_to_more_than_the_card_are_refused() -> None:
    with tempfile.TemporaryDirectory(prefix="q", dir="/tmp") as folder, machine_in(Path(folder), "T4") as machine:
        try:
            machine.hold("--gpu", "0.5")
            before = machine.changes(), machine.json("ps")["allocations"]
            done = machine.tranche("run", "--no-wait", "--gpu", "0.6", *COMMAND, code=32)
            says(done, "7.24 GiB free of 14.49 GiB shared, but the request needs 8.69 GiB")
            assert (machine.changes(), machine.json("ps")["allocations"]) == before
            assert machine.json("ps")["waiters"] == []
        finally:
            machine.end()
            end_daemons(machine)


def test_nothing_free_and_no_patience(make_machine: MakeMachine) -> None:
    machine = make_machine("A30-24GB")
    machine.hold("--gpus", "1")
    says(machine.tranche("run", "--gpus", "1", "--no-wait", *COMMAND, code=32), "nothing is free for --gpus 1")
    says(
        machine.tranche("run", "--gpus", "1", "--timeout", "0.1", "-q", *COMMAND, code=70), "got no share within 0.1 s"
    )
    assert machine.json("ps")["waiters"] == []


READERS = (
    ("gpus",),
    ("ps",),
    ("top",),
    ("explain", "--gpus", "1"),
    ("release", "00000000"),
    ("run", "--gpus", "1", *COMMAND),
)


@pytest.mark.parametrize("arguments", [*READERS, ("events",)], ids=lambda arguments: arguments[0])
def test_a_ledger_of_a_newer_version_is_left_alone(two_a100: TestMachine, arguments: tuple[str, ...]) -> None:
    two_a100.tranche("ps")
    with sqlite3.connect(two_a100.ledger) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = two_a100.changes(), two_a100.ledger.read_bytes()
    says(two_a100.tranche(*arguments, code=62), "was written by a newer version of tranche")
    assert (two_a100.changes(), two_a100.ledger.read_bytes()) == before


@pytest.mark.parametrize("arguments", [*READERS, ("events",)], ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("damage", ["garbage", "other-database", "torn"])
def test_a_corrupt_ledger_is_left_alone(two_a100: TestMachine, arguments: tuple[str, ...], damage: str) -> None:
    two_a100.tranche("ps")
    if damage == "garbage":
        two_a100.ledger.write_bytes(b"this is no database " * 500)
    elif damage == "other-database":
        two_a100.ledger.unlink()
        with sqlite3.connect(two_a100.ledger) as db:
            db.execute("CREATE TABLE recipes (name TEXT)")
        db.close()
    else:
        sound = two_a100.ledger.read_bytes()
        two_a100.ledger.write_bytes(sound[:4096] + b"\xa5" * (len(sound) - 4096))
    before = two_a100.changes(), two_a100.ledger.read_bytes()
    says(two_a100.tranche(*arguments, code=61), "ledger")
    assert (two_a100.changes(), two_a100.ledger.read_bytes()) == before


@pytest.mark.parametrize("arguments", [("ps",), ("run", "--gpus", "1", *COMMAND)], ids=lambda arguments: arguments[0])
def test_a_file_in_the_place_of_the_state_folder(two_a100: TestMachine, arguments: tuple[str, ...]) -> None:
    two_a100.state_dir.write_text("a file")
    before = two_a100.changes()
    says(two_a100.tranche(*arguments, code=60), "cannot create the state folder", hint=False)
    assert two_a100.changes() == before
    assert two_a100.state_dir.read_text() == "a file"


@needs_root
@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
@pytest.mark.parametrize("arguments", [("ps",), ("run", "--gpus", "1", *COMMAND)], ids=lambda arguments: arguments[0])
def test_a_state_folder_that_may_not_be_written(
    readable_a100: TestMachine, arguments: tuple[str, ...], exists: bool
) -> None:
    if exists:
        readable_a100.tranche("ps")
    before = readable_a100.changes(), sorted(os.listdir(readable_a100.folder))
    done = readable_a100.tranche(*arguments, as_nobody=True, code=None)
    if arguments[0] == "ps":
        assert (done.returncode, done.stderr) == (0, ""), "who may not write may read"
    else:
        assert done.returncode == 22
        says(done, "register" if exists else "ledger")
    assert (readable_a100.changes(), sorted(os.listdir(readable_a100.folder))) == before


@needs_root
def test_who_may_not_cut_gets_nothing_and_leaves_nothing(readable_a100: TestMachine) -> None:
    readable_a100.state_dir.mkdir()
    shutil.chown(readable_a100.state_dir, NOBODY, NOBODY)
    settle_register(readable_a100.machine.directory / "tranche", readable_a100.state_dir)
    before = readable_a100.machine.gpus()
    done = readable_a100.tranche("run", "--mig-profile", "1g.5gb", "-q", *COMMAND, as_nobody=True, code=22)
    says(done, "cannot enable MIG mode")
    assert readable_a100.machine.gpus() == before
    assert readable_a100.json("ps")["allocations"] == []
    assert readable_a100.json("ps")["waiters"] == []
    whole = readable_a100.tranche("run", "--gpus", "1", "-q", "--", "true", as_nobody=True)
    assert whole.stderr == "", "a whole GPU needs no cutting"


@needs_root
def test_a_workload_of_another_user_is_not_ended(readable_a100: TestMachine) -> None:
    workload = readable_a100.hold("--mig-profile", "1g.5gb")
    allocations = readable_a100.json("ps")["allocations"]
    arguments = ("release", allocations[0]["id"], "--terminate")
    says(readable_a100.tranche(*arguments, as_nobody=True, code=22), f"no permission to terminate pid {workload.pid}")
    assert readable_a100.json("ps")["allocations"] == allocations


@needs_root
@pytest.mark.parametrize("name", ["machine", "p4d.24xlarge"])
def test_simulated_machines_that_may_not_be_read(readable_a100: TestMachine, name: str) -> None:
    closed = readable_a100.folder / "closed"
    closed.mkdir(mode=0o700)
    done = readable_a100.tranche(
        "--simulate", name, "gpus", as_nobody=True, code=27, TRANCHE_SIM_ROOT=str(closed / "in")
    )
    says(done, str(closed / "in"))


def test_the_error_is_one_json_document_where_json_is_asked(two_a100: TestMachine) -> None:
    done = two_a100.tranche("explain", "--gpu", "0", "-o", "json", code=2)
    assert done.stdout == ""
    error = json.loads(done.stderr)
    assert (error["apiVersion"], error["kind"]) == ("tranche.dev/v1", "Error")
    assert (error["reason"], error["exitCode"]) == ("Usage", 2)
    assert error["message"]
    assert error["hint"]
