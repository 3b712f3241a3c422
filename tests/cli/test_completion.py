"""What a shell completes: words that are there, quickly, and nothing else happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine


def complete(machine: TestMachine, line: str, **variables: str) -> list[str]:
    """What bash is offered after the line's last word, which may be empty."""
    words = line.split(" ")
    variables |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "TRANCHE_SIM_ROOT": str(machine.folder)}
    done = machine.tranche(_TRANCHE_COMPLETE="bash_complete", **variables)  # type: ignore[arg-type]
    assert done.stderr == ""
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each]


@pytest.fixture
def machine(make_machine: MakeMachine) -> TestMachine:
    return make_machine("A30-24GB")


def test_commands_and_options(machine: TestMachine) -> None:
    assert complete(machine, "tranche p") == ["policy", "profiles", "ps"]
    assert complete(machine, "tranche layout pl") == ["plan"]
    assert "--gpu-memory" in complete(machine, "tranche run --gpu")
    assert complete(machine, "tranche gpus -o w") == ["wide"]


def test_ids_of_allocations_and_of_waiting_requests(machine: TestMachine) -> None:
    assert complete(machine, "tranche release ") == []
    assert not machine.state_dir.exists(), "a ledger must not be made for a completion"
    machine.hold("--gpus", "1")
    machine.wait_in_queue("--gpus", "1")
    listed = machine.json("ps")
    held, waits = listed["allocations"][0]["id"], listed["waiters"][0]["id"]
    assert complete(machine, "tranche release ") == [held, waits]
    assert complete(machine, f"tranche release {held[:3]}") == [held]
    assert complete(machine, "tranche explain ") == [waits]


def test_layouts_of_the_machine_and_of_a_file(machine: TestMachine) -> None:
    assert complete(machine, "tranche layout apply -c all-1g") == ["all-1g.6gb", "all-1g.6gb.me"]
    file = machine.folder / "layouts.yaml"
    file.write_text("version: v1\nmig-configs: {nightly: [{devices: all, mig-enabled: false}]}\n")
    assert complete(machine, f"tranche layout plan -f {file} -c ") == ["nightly"]


def test_profiles_boards_and_machines(machine: TestMachine) -> None:
    assert complete(machine, "tranche run --mig-profile 2g") == ["2g.12gb", "2g.12gb+me"]
    assert "A100-40GB" in complete(machine, "tranche profiles --board A100")
    assert complete(machine, "tranche --simulate mach") == ["machine"]
    assert "p4d.24xlarge" in complete(machine, "tranche gpus --simulate p4d")


@pytest.mark.parametrize(
    "line",
    ["tranche release ", "tranche layout plan -c ", "tranche run --mig-profile ", "tranche explain --mig-profile "],
)
def test_no_machine_is_made_for_a_completion(machine: TestMachine, line: str) -> None:
    before = sorted(os.listdir(machine.folder))
    assert complete(machine, line, TRANCHE_SIMULATE="p4d.24xlarge") == []
    assert complete(machine, line.replace("tranche", "tranche --simulate a30-server", 1)) == []
    assert sorted(os.listdir(machine.folder)) == before


def test_whatever_is_broken_there_are_no_words_and_no_traceback(machine: TestMachine, tmp_path: Path) -> None:
    machine.tranche("ps")
    machine.ledger.write_bytes(b"no ledger " * 1000)
    assert complete(machine, "tranche release ") == []
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in (str(pipe), "-", str(tmp_path), "/dev/zero", "/no/such/file"):
        assert complete(machine, f"tranche layout plan -f {name} -c ") == []
    assert complete(machine, "tranche run --mig-profile ", TRANCHE_SIM_STATE="/no/such/state") == []
