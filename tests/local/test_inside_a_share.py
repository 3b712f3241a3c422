"""What is hidden from a process is not gone, and a command in a share decides nothing about the machine."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import TRANCHE, TestMachine, machine_in, wait_until
from tests.support.length import some_of
from tranche.core.state import DeviceVisibility
from tranche.hardware.driver import scope_of

SLICE = ("--mig-profile", "3g.20gb")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[TestMachine]:
    """Two A100 40 GB; Tranche has made two slices on the first and one on the second."""
    with machine_in(tmp_path, "A100-40GB", "A100-40GB") as machine:
        works = [machine.hold(*SLICE) for _ in range(3)]
        for work in works:
            work.process.terminate()
            work.process.wait(timeout=60)
        assert owned(machine) == [True, True, True]
        yield machine


def owned(machine: TestMachine) -> list[bool]:
    """Of each slice on the machine, whether Tranche made it."""
    return [each["owned"] for gpu in machine.json("gpus")["gpus"] for each in gpu["slices"]]


def inside(machine: TestMachine, *arguments: str) -> str:
    """Run tranche in a share; what it says, and its exit code."""
    nested = shlex.join([*TRANCHE, *arguments])
    done = machine.tranche("run", "-q", "--mig-profile", "1g.5gb", "--", "sh", "-c", f"{nested} 2>&1; echo code $?")
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    some_of(
        [("gpus",), ("explain", "--mig-profile", "1g.5gb"), ("ps",), ("top", "--once"), ("doctor",), ("events",)], 2
    ),
)
def test_looking_from_inside_a_share_changes_nothing(machine: TestMachine, arguments: tuple[str, ...]) -> None:
    assert "code 0" in inside(machine, *arguments)
    assert owned(machine) == [True] * 3, "the new slice took the room of one that a request had left"


def test_what_a_share_hides_is_neither_missing_nor_lost(machine: TestMachine) -> None:
    machine.hold("--gpus", "1")
    machine.hold("--mig-profile", "2g.10gb")
    script = "; ".join(f"{shlex.join(TRANCHE)} {each} 2>&1" for each in ("ps", "gpus", "top --once", "doctor"))
    said = machine.tranche("run", "-q", "--mig-profile", "1g.5gb", "--", "sh", "-c", script).stdout
    assert "this process sees 1 GPU" in said
    assert "NVIDIA_VISIBLE_DEVICES may hide devices of this machine" in said
    assert not [word for word in ("missing", "lost", "does not exist", "next:") if word in said], said
    nested = f"{shlex.join(TRANCHE)} ps -o json"
    held = json.loads(machine.tranche("run", "-q", "--mig-profile", "1g.5gb", "--", "sh", "-c", nested).stdout)
    assert [each["missingInstances"] for each in held["allocations"]] == [[], [], []]


def test_a_share_inside_a_share_is_refused(machine: TestMachine) -> None:
    said = inside(machine, "run", *SLICE, "--", "true")
    assert "code 2" in said
    assert "inside share" in said
    assert owned(machine) == [True] * 3, "the new slice took the room of one that a request had left"


@pytest.mark.parametrize(
    "share", some_of([("--mig-profile", "1g.5gb"), ("--gpus", "1")], 1), ids=["a slice", "a whole GPU"]
)
def test_nothing_of_the_machine_is_changed_from_inside_a_share(machine: TestMachine, share: tuple[str, ...]) -> None:
    commands = (
        "cordon 1",
        "uncordon 1",
        "reserve add --gpu 1 --from 9:00 --for 1h",
        "policy set sharing=off",
        "policy set timeslice=short",
        "policy unset",
        "layout apply -c all-1g.5gb",
        "layout apply -c all-disabled",
        "release 12345678",
        "run --mig-profile 1g.5gb -- true",
    )
    other = machine.hold("--mig-profile", "2g.10gb")
    before = machine.json("policy", "list")
    script = "; ".join(f"{shlex.join(TRANCHE)} {each} 2>&1; echo code $?" for each in commands)
    done = machine.tranche("run", "-q", *share, "--", "sh", "-c", script)
    assert (
        done.stdout.count("this process is running inside share") == done.stdout.count("code 2\n") == len(commands)
    ), done.stdout
    assert machine.json("policy", "list") == before
    assert [each["withheld"] for each in machine.json("gpus")["gpus"]] == [None, None]
    assert other.process.poll() is None


def test_a_layout_is_refused_where_slices_may_be_hidden(machine: TestMachine) -> None:
    before = machine.changes()
    slices = machine.smi("-L").split("UUID: MIG-")[1].split(")")[0]
    done = machine.tranche(
        "layout", "apply", "--selected-config", "all-disabled", NVIDIA_VISIBLE_DEVICES=f"MIG-{slices}", code=22
    )
    assert "NVIDIA_VISIBLE_DEVICES" in done.stderr
    assert machine.changes() == before


def test_hidden_gpus_are_not_gone(machine: TestMachine) -> None:
    for visible in ("1", "none", machine.machine.gpus()[0].uuid):
        machine.tranche("ps", NVIDIA_VISIBLE_DEVICES=visible)
        machine.tranche("run", "-q", "--no-wait", *SLICE, "--", "true", NVIDIA_VISIBLE_DEVICES=visible, code=None)
        assert all(owned(machine))


def test_a_lost_gpu_keeps_its_slices_for_when_it_comes_back(machine: TestMachine) -> None:
    machine.machine.inject_lost(0)
    machine.tranche("ps")
    machine.tranche("run", "-q", *SLICE, "--", "true")
    machine.machine.clear_injections()
    assert owned(machine) == [True] * 3


def test_what_a_killed_process_left_on_a_hidden_gpu_waits_for_somebody_who_sees_it(machine: TestMachine) -> None:
    machine.machine.set_time_scale(100.0)
    command = machine.start("run", "-q", "--mig-profile", "7g.40gb", "--", "true")
    wait_until(lambda: [each["phase"] for each in machine.json("ps")["allocations"]] == ["preparing"], command)
    (gpu,) = {each["gpuUUID"] for each in machine.json("ps")["allocations"][0]["grants"]}
    command.send_signal(signal.SIGKILL)
    command.wait()
    machine.machine.set_time_scale(0)
    other = next(each.uuid for each in machine.machine.gpus() if each.uuid != gpu)
    machine.tranche("ps", NVIDIA_VISIBLE_DEVICES=other)
    machine.tranche("run", "-q", "--mig-profile", "1g.5gb", "--", "true", NVIDIA_VISIBLE_DEVICES=other)
    kinds = {each["type"] for each in machine.json("events")["events"]}
    assert not kinds & {"Recovered", "UndoIncomplete"}
    assert machine.json("ps")["allocations"] == []
    kinds = {each["type"] for each in machine.json("events")["events"]}
    assert kinds & {"Recovered", "UndoIncomplete"} == {"Recovered"}
    assert all(owned(machine))


@pytest.mark.parametrize(
    ("value", "scope"),
    [
        (None, DeviceVisibility.ALL),
        ("all", DeviceVisibility.ALL),
        ("", DeviceVisibility.GPUS),
        ("none", DeviceVisibility.GPUS),
        ("0,1", DeviceVisibility.GPUS),
        ("GPU-0d1e2f3a-0000-1111-2222-333344445555, 1", DeviceVisibility.GPUS),
        ("void", DeviceVisibility.PARTS),
        ("MIG-0d1e2f3a-0000-1111-2222-333344445555", DeviceVisibility.PARTS),
        ("0,1:2", DeviceVisibility.PARTS),
        ("/var/run/nvidia-container-devices", DeviceVisibility.PARTS),
    ],
)
def test_lists_of_gpus_show_them_whole_and_nothing_else_does(value: str | None, scope: DeviceVisibility) -> None:
    assert scope_of(value) is scope


@pytest.mark.parametrize("how", some_of(["", "setsid -w "], 1), ids=["as a child", "in a session of its own"])
def test_a_share_is_not_taken_back_from_inside(machine: TestMachine, how: str) -> None:
    release = how + shlex.join([*TRANCHE, "release", "--terminate"])
    script = f"{release} $TRANCHE_ALLOCATION 2>&1; echo code $?"
    done = machine.tranche("run", "-q", "--mig-profile", "1g.5gb", "--", "sh", "-c", script)
    assert "code 2" in done.stdout
    assert "this process is running inside share" in done.stdout
    assert "root" not in done.stdout
    assert machine.json("ps")["allocations"] == []
