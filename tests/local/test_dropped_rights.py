"""A command that becomes another user: what still limits the memory of its share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.test_fractions import GB, GREEDY, OUT_OF_MEMORY, STEP_MIB, end_daemons, folder, isolations, tenant
from tests.local.test_memory_limits import groups
from tests.machines import TestMachine, machine_in, needs_root, wait_until

__all__ = ["folder", "groups"]

pytestmark = needs_root

# The library lies where nobody may not read.
BECOME_NOBODY = """
import ctypes
ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""


def open_to_all(machine: TestMachine) -> None:
    """Let everybody use the simulated machine, as everybody reaches a real one's device files."""
    for top, _, names in os.walk(machine.machine.state.parent):
        os.chmod(top, 0o777)
        for name in names:
            os.chmod(Path(top, name), 0o666)
    os.chmod(machine.folder, 0o755)


def greedy(machine: TestMachine, *request: str) -> tuple[int, int]:
    """How many bytes a command gets that becomes nobody, and which error ends that."""
    one = tenant(machine, *request, code=BECOME_NOBODY + GREEDY)
    got, code = one.told()
    one.go_on()
    assert one.ended()[0] == 0
    return got << 20, code


def test_the_drivers_limit_holds_for_a_command_that_becomes_another_user(folder: Path, groups: Path) -> None:
    """A process stays in its control group, whoever it is."""
    with machine_in(folder, "T4") as machine:
        machine.machine.set_driver("615.71.09")
        open_to_all(machine)
        got, code = greedy(machine, "--gpu-memory", "3G")
        assert code == OUT_OF_MEMORY
        assert 3 * GB - (STEP_MIB << 20) < got < 3 * GB + (600 << 20)


@pytest.fixture
def slice_of_20gb(folder: Path) -> Iterator[TestMachine]:
    """A machine with a slice of which parts are given by MPS."""
    with machine_in(folder, "A100-40GB") as machine:
        try:
            machine.cut_by_hand(0, "4g.20gb", "3g.20gb")
            machine.hold("--mig-profile", "4g.20gb")
            open_to_all(machine)
            yield machine
        finally:
            machine.end()
            end_daemons(machine)


PART = ("--gpu-memory", "4G", "--compute", "25")


def test_a_command_that_becomes_another_user_reaches_the_daemon_of_its_slice(slice_of_20gb: TestMachine) -> None:
    beside = tenant(slice_of_20gb, *PART, code="context(); tell(0); wait()")
    assert beside.told() == 0
    got, code = greedy(slice_of_20gb, *PART)
    assert code == OUT_OF_MEMORY
    assert 4 * GB - (STEP_MIB << 20) < got < 4 * GB + (540 << 20)
    beside.go_on()
    assert beside.ended()[0] == 0


def test_one_that_does_not_reach_the_daemon_of_its_slice_is_noticed(slice_of_20gb: TestMachine) -> None:
    """Where the state folder is closed to other users, as an agent's is."""
    slice_of_20gb.tranche("run", *PART, "--", "true")
    os.chmod(slice_of_20gb.state_dir, 0o700)
    one = tenant(slice_of_20gb, *PART, code=BECOME_NOBODY + GREEDY)
    got, _ = one.told()
    assert got << 20 > 15 * GB, "nothing but the slice limits it"
    assert isolations(slice_of_20gb)[1:] == ["none"]
    wait_until(lambda: "LimitExceeded" in slice_of_20gb.tranche("events").stdout)
    one.go_on()
    assert "Tranche now counts it as unlimited" in one.ended()[1]


def test_one_that_does_not_reach_the_daemon_of_an_uncut_gpu_is_refused(folder: Path) -> None:
    with machine_in(folder, "T4") as machine:
        try:
            open_to_all(machine)
            alone = BECOME_NOBODY + "cu.cuInit(0); tell(code(cu.cuCtxCreate(None, 0, check(cu.cuDeviceGet(0)))))"
            one = tenant(machine, "--gpu-memory", "3G", code=alone)
            assert one.told() != 0
            assert one.ended()[0] == 0
        finally:
            end_daemons(machine)
