"""Parts by the driver's own memory limits, from release 615 on: each command in a control group of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.local.test_fractions import GB, GREEDY, OUT_OF_MEMORY, STEP_MIB, end_daemons, holders, tenant
from tests.machines import TestMachine, machine_in, wait_until
from tests.simulator.control_groups import hierarchy
from tranche.core.errors import HardwareError
from tranche.hardware.control_groups import group_namespace, own_group, remove_group
from tranche.node.memory_groups import MemoryGroup, MemoryGroups
from tranche.node.session import Places, boot_id

TOTAL = GREEDY.replace("tell([len(sizes)", "tell([check(cu.cuMemGetInfo())[1] >> 20, len(sizes)")


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Path]:
    """The hierarchy of version 2, mounted."""
    with hierarchy(tmp_path) as root:
        yield root


@pytest.fixture
def t4(tmp_path: Path, groups: Path) -> Iterator[TestMachine]:
    """A g4dn.xlarge with a driver of release 615."""
    with machine_in(tmp_path, machine_type="g4dn.xlarge") as machine:
        machine.machine.set_driver("615.71.09")
        try:
            yield machine
        finally:
            machine.end()
            end_daemons(machine)


def of_shares(machine: TestMachine) -> list[str]:
    """The shares that the state folder has a group for."""
    notes = Places(machine.state_dir).memory_groups
    return sorted(os.listdir(notes)) if notes.is_dir() else []


def test_four_programs_share_a_t4_by_the_drivers_limits_and_see_no_more_than_they_have(
    t4: TestMachine, groups: Path
) -> None:
    tenants = [tenant(t4, "--gpu-memory", "3G", code=TOTAL) for _ in range(4)]
    for each in tenants:
        total, got, code = each.told()
        assert code == OUT_OF_MEMORY
        assert 3 * GB - (STEP_MIB << 20) < got << 20 < total << 20 < 3 * GB + (600 << 20)
    shares = holders(t4)
    assert {(each["grants"][0]["mechanism"], each["grants"][0]["walls"]["faults"]) for each in shares} == {
        ("memory-limits", "own")
    }
    assert of_shares(t4) == sorted(each["id"] for each in shares)
    fifth = tenant(t4, "--gpu-memory", "3G", code=TOTAL)
    wait_until(lambda: len(t4.json("ps")["waiters"]) == 1, fifth.process)
    for each in tenants:
        each.go_on()
        assert each.ended()[0] == 0
    assert fifth.told()[2] == OUT_OF_MEMORY
    fifth.go_on()
    assert fifth.ended()[0] == 0
    assert of_shares(t4) == []
    assert not [each["id"] for each in shares if (groups / f"tranche-{each['id']}").exists()]


def test_processes_of_one_command_have_the_limit_together(t4: TestMachine) -> None:
    both = """
import subprocess
held = context(); taken = [check(cu.cuMemAlloc(2 << 30))]
inner = "from cuda.bindings import driver as cu; cu.cuInit(0); cu.cuCtxCreate(None, 0, 0); print(int(cu.cuMemAlloc(2 << 30)[0]))"
tell(int(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True).stdout))
"""
    assert tenant(t4, "--gpu-memory", "3G", code=both).told() == OUT_OF_MEMORY


def test_a_group_whose_run_was_killed_goes_with_the_next_command(t4: TestMachine, groups: Path) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    (holder,) = holders(t4)
    first.process.kill()
    first.process.wait()
    # The command lives, and so do its share, its group and its limit.
    assert of_shares(t4) == [holder["id"]]
    assert holders(t4) == [holder]
    os.kill(holder["pid"], signal.SIGKILL)
    wait_until(lambda: holders(t4) == [])
    wait_until(lambda: (t4.tranche("gpus"), of_shares(t4))[1] == [])
    assert not (groups / f"tranche-{holder['id']}").exists()


def test_a_driver_that_refuses_the_limit_lets_nobody_in(t4: TestMachine) -> None:
    t4.machine.set_limits_backend("off")
    refused = t4.tranche(
        "run", "--gpu-memory", "3G", "--", "touch", str(t4.folder / "ran"), code=HardwareError.exit_code
    )
    assert "control group" in refused.stderr
    assert not (t4.folder / "ran").exists()
    assert holders(t4) == []
    assert of_shares(t4) == []


# Where a process is


@pytest.mark.parametrize(
    ("own", "mount", "expected"),
    [
        ("0::/a/b\n", "/ /sys/fs/cgroup rw - cgroup2 none rw", "/sys/fs/cgroup/a/b"),
        ("12:cpu:/x\n0::/\n", "/ /mnt rw shared:4 - cgroup2 none rw", "/mnt"),
        ("0::/a/b\n", "/a /mnt rw - cgroup2 none rw", "/mnt/b"),
        ("0::/a/b\n", "/c /mnt rw - cgroup2 none rw", None),
        ("0::/a/b\n", "/ /mnt rw - cgroup none rw", None),
        ("12:cpu:/x\n", "/ /mnt rw - cgroup2 none rw", None),
    ],
)
def test_the_own_group_is_found_where_its_hierarchy_is_mounted(
    tmp_path: Path, own: str, mount: str, expected: str | None
) -> None:
    (tmp_path / "cgroup").write_text(own)
    (tmp_path / "mountinfo").write_text(f"30 29 0:26 {mount}\n")
    found = own_group(tmp_path)
    assert found == (None if expected is None else Path(expected))


# When a group goes


def noted(state_dir: Path, group: MemoryGroup) -> MemoryGroups:
    """The groups of a state folder that has a note of this one."""
    groups = MemoryGroups(Places(state_dir))
    groups._note(group)
    assert groups.left([]) == (group,)
    return groups


def group_at(folder: Path, **more: str) -> MemoryGroup:
    here = {"namespace": group_namespace(), "boot": boot_id(), **more}
    return MemoryGroup("aaaa0001", folder / "tranche-aaaa0001", ("GPU-a",), **here)


@pytest.mark.parametrize("below", ["", "session/scope"])
def test_a_group_that_somebody_removed_is_forgotten(tmp_path: Path, below: str) -> None:
    (tmp_path / "cgroup.procs").touch()
    group = group_at(tmp_path / below)
    groups = noted(tmp_path / "state", group)
    assert groups.drop(group)
    assert groups.left([]) == ()


@pytest.mark.parametrize("namespace", [None, "cgroup:[1]", ""])
def test_a_group_that_cannot_be_seen_from_here_is_not_forgotten(tmp_path: Path, namespace: str | None) -> None:
    """As in a container, where the path leads nowhere, or somewhere else; without a namespace the group above must be there."""
    if namespace is not None:
        (tmp_path / "cgroup.procs").touch()
    group = group_at(tmp_path / "pod", **({} if namespace is None else {"namespace": namespace}))
    groups = noted(tmp_path / "state", group)
    assert not groups.drop(group)
    assert groups.left([]) == (group,)


def test_a_group_of_an_earlier_start_of_the_machine_is_forgotten(tmp_path: Path) -> None:
    group = group_at(tmp_path, namespace="cgroup:[1]", boot="5b8d22c6-0000-4000-8000-000000000000")
    groups = noted(tmp_path / "state", group)
    assert groups.drop(group)
    assert groups.left([]) == ()


def test_a_group_of_which_the_kernel_does_not_say_who_is_in_it_stays(tmp_path: Path) -> None:
    group = group_at(tmp_path)._replace(gpu_uuids=())
    group.folder.mkdir()
    groups = noted(tmp_path / "state", group)
    assert not groups.drop(group)
    assert (group.folder.exists(), groups.left([])) == (True, (group,))


def test_group_and_note_stay_while_the_driver_does_not_lift_the_limit(t4: TestMachine, groups: Path) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    (holder,) = holders(t4)
    t4.machine.inject_error("nvmlDeviceSetMemoryLimits", pynvml.NVML_ERROR_UNKNOWN, calls=1000)
    first.go_on()
    assert first.ended()[0] == 0
    assert holders(t4) == []
    assert of_shares(t4) == [holder["id"]]
    (left,) = MemoryGroups(Places(t4.state_dir)).left([])
    assert left.folder.is_dir()
    t4.machine.clear_injections()
    assert holders(t4) == []
    assert of_shares(t4) == []
    assert not left.folder.exists()


def test_a_lost_gpu_keeps_no_group(t4: TestMachine, groups: Path) -> None:
    first = tenant(t4, "--gpu-memory", "3G")
    assert first.told() is not None
    (left,) = MemoryGroups(Places(t4.state_dir)).left([])
    t4.machine.inject_lost(0)
    first.go_on()
    first.ended()
    wait_until(lambda: (t4.tranche("gpus"), of_shares(t4))[1] == [])
    assert not left.folder.exists()


def test_a_group_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    assert remove_group(tmp_path / "gone")
