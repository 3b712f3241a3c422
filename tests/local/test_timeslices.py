"""The length of turns: set with the first share that takes them, read back, and put back after the last."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.test_fractions import end_daemons, folder, holders, tenant
from tests.machines import TestMachine, machine_in, wait_until
from tranche.core.errors import HardwareError, PolicyInvalid, UsageError
from tranche.node.state.session import StateFolder

__all__ = ["folder"]

TURNS = ("--gpu-memory", "3G", "--isolation", "none")
IDLE = "context(); tell(0); wait()"


@pytest.fixture
def t4(folder: Path) -> Iterator[TestMachine]:
    """A T4 whose driver is too old for anything but turns."""
    with machine_in(folder, machine_type="g4dn.xlarge") as machine:
        machine.machine.set_driver("470.82.01")
        try:
            yield machine
        finally:
            machine.end()
            end_daemons(machine)


def length(machine: TestMachine) -> str:
    """What the driver says."""
    line = next(each for each in machine.smi("compute-policy", "-l").splitlines() if "Timeslice" in each)
    return line.split()[3]


def records(machine: TestMachine) -> list[str]:
    folder = StateFolder(machine.state_dir).timeslices
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def test_the_first_share_sets_the_length_and_the_last_one_puts_it_back(t4: TestMachine) -> None:
    t4.smi("compute-policy", "--set-timeslice=2")
    assert "timeslice=short" in t4.tranche("policy", "set", "--gpu", "0", "timeslice=short").stderr
    assert length(t4) == "Medium", "nobody takes turns yet"
    assert "set the time slice to short" in t4.tranche("explain", *TURNS).stdout
    one, other = tenant(t4, *TURNS, code=IDLE), tenant(t4, *TURNS, code=IDLE)
    assert one.told() == other.told() == 0
    assert length(t4) == "Short"
    assert "SetTimeslice" in t4.tranche("events").stdout
    one.go_on()
    assert one.ended()[0] == 0
    t4.tranche("gpus")
    assert length(t4) == "Short"
    other.go_on()
    assert other.ended()[0] == 0
    wait_until(lambda: (t4.tranche("gpus"), length(t4))[1] == "Medium")


def test_a_killed_share_leaves_no_length_behind(t4: TestMachine) -> None:
    t4.tranche("policy", "set", "timeslice=long")
    one = tenant(t4, *TURNS, code=IDLE)
    assert one.told() == 0
    assert length(t4) == "Long"
    holder = t4.one_running()
    one.process.kill()
    os.kill(holder["pid"], signal.SIGKILL)
    wait_until(lambda: (t4.tranche("gpus"), length(t4))[1] == "Default")


def test_what_somebody_has_set_meanwhile_stays(t4: TestMachine) -> None:
    t4.tranche("policy", "set", "timeslice=long")
    one = tenant(t4, *TURNS, code=IDLE)
    assert one.told() == 0
    t4.smi("compute-policy", "--set-timeslice=2")
    one.go_on()
    one.ended()
    wait_until(lambda: (t4.tranche("gpus"), records(t4))[1] == [])
    assert length(t4) == "Medium"


def test_a_length_of_an_earlier_start_is_forgotten_as_the_driver_has_forgotten_it(t4: TestMachine) -> None:
    t4.tranche("policy", "set", "--gpu", "0", "timeslice=long")
    t4.tranche("run", *TURNS, "--", "true")
    wait_until(lambda: (t4.tranche("gpus"), records(t4))[1] == [])
    path = StateFolder(t4.state_dir).timeslices / f"{t4.json('gpus')['gpus'][0]['uuid']}.json"
    path.write_text(json.dumps({"set": "long", "before": "medium", "boot": "earlier", "tried": 0.0}))
    t4.smi("compute-policy", "--set-timeslice=0")
    wait_until(lambda: (t4.tranche("explain", *TURNS), path.exists())[1] is False)
    assert length(t4) == "Default"


def test_the_words_are_listed_and_taken_back(t4: TestMachine) -> None:
    t4.tranche("policy", "set", "timeslice=long")
    t4.tranche("policy", "set", "--gpu", "0", "timeslice=medium")
    assert t4.json("policy", "list")["gpus"][0]["timeslice"] == "medium"
    t4.tranche("policy", "unset", "--gpu", "0")
    assert t4.json("policy", "list")["gpus"][0]["timeslice"] == "long"
    t4.tranche("policy", "unset")
    assert t4.json("policy", "list")["gpus"][0]["timeslice"] is None
    assert records(t4) == []
    t4.tranche("policy", "set", "timeslice=0.5", code=UsageError.exit_code)


def test_shares_by_mps_take_no_turns(folder: Path) -> None:
    with machine_in(folder, machine_type="g4dn.xlarge") as machine:
        try:
            machine.tranche("policy", "set", "timeslice=long")
            machine.tranche("run", "--gpu-memory", "3G", "--", "true")
            assert length(machine) == "Default"
        finally:
            end_daemons(machine)


def test_a_gpu_in_mig_mode_has_no_time_slice(folder: Path) -> None:
    with machine_in(folder, "A100-40GB") as machine:
        machine.cut_by_hand(0, "3g.20gb")
        refused = machine.tranche("policy", "set", "--gpu", "0", "timeslice=short", code=PolicyInvalid.exit_code)
        assert "is in MIG mode" in refused.stderr


def test_a_driver_that_refuses_the_length_refuses_the_share_and_nothing_is_left(t4: TestMachine, folder: Path) -> None:
    t4.tranche("policy", "set", "timeslice=long")
    (folder / "bin").mkdir()
    refuses = folder / "bin" / "nvidia-smi"
    real = next(
        Path(each, "nvidia-smi") for each in t4.environment["PATH"].split(":") if Path(each, "nvidia-smi").exists()
    )
    refuses.write_text(
        f'#!/bin/sh\ncase "$*" in *set-timeslice*) echo not supported; exit 3;; esac\nexec {real} "$@"\n'
    )
    refuses.chmod(0o755)
    found = t4.tranche(
        "run",
        "--no-wait",
        *TURNS,
        "--",
        "true",
        code=HardwareError.exit_code,
        PATH=f"{folder}/bin:{t4.environment['PATH']}",
    )
    assert "not supported" in found.stderr
    assert holders(t4) == []
    assert records(t4) == []
