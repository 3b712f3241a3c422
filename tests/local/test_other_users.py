"""Who is not root beside MPS daemons of root's: sees what everybody may see, and neither judges nor ends anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local.test_fractions import end_daemons, holders, tenant
from tests.machines import TestMachine, machine_in, needs_root, readable_folder
from tests.support.in_process import NOBODY
from tranche.core.errors import PermissionDenied
from tranche.core.state import DaemonState
from tranche.node.mps.mps_records import DaemonRecordStore
from tranche.node.state.session import StateFolder

pytestmark = needs_root

LOOKS = (("gpus",), ("ps",), ("top", "--once"), ("events",))
JOB = "context(); tell(0); wait()"


@pytest.fixture
def t4() -> Iterator[TestMachine]:
    """A machine that other users may look at, although not into the folders of its daemons."""
    with readable_folder() as folder, machine_in(folder, machine_type="g4dn.xlarge") as machine:
        machine.cache = folder / "cache"
        try:
            yield machine
        finally:
            machine.end()
            end_daemons(machine)


def records(machine: TestMachine) -> DaemonRecordStore:
    return DaemonRecordStore(StateFolder(machine.state_dir).mps)


def close_sockets(machine: TestMachine) -> None:
    """Close the daemon's folder to other users, as it is where the driver keeps a daemon to its own user."""
    (record,) = records(machine).all()
    records(machine).pipes(record.device_uuid).chmod(0o700)


def test_everybody_may_look_while_a_daemon_is_idle(t4: TestMachine) -> None:
    t4.tranche("run", "--gpu-memory", "3G", "--", "true")
    close_sockets(t4)
    (before,) = records(t4).all()
    for arguments in LOOKS:
        done = t4.tranche(*arguments, as_nobody=True)
        assert done.stderr == "", arguments
    assert records(t4).all() == (before,)
    assert before.state is DaemonState.READY


def test_who_may_not_end_a_tenant_is_refused_before_its_daemon_is_asked(t4: TestMachine) -> None:
    one = tenant(t4, "--gpu-memory", "3G", code=JOB)
    assert one.told() == 0
    close_sockets(t4)
    (before,) = records(t4).all()
    (held,) = holders(t4)
    done = t4.tranche("release", held["id"], "--terminate", as_nobody=True, code=PermissionDenied.exit_code)
    assert "no permission to terminate pid" in done.stderr
    assert "sudo" in done.stderr
    assert records(t4).all() == (before,)
    assert [each["id"] for each in holders(t4)] == [held["id"]]
    one.go_on()
    assert one.ended()[0] == 0


def test_who_may_end_a_tenant_but_not_judge_its_daemon_leaves_the_daemon_alone(t4: TestMachine) -> None:
    give_up = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); "
    one = tenant(t4, "--gpu-memory", "3G", code=f"context(); {give_up}{JOB.removeprefix('context(); ')}")
    assert one.told() == 0
    close_sockets(t4)
    (before,) = records(t4).all()
    (held,) = holders(t4)
    t4.tranche("release", held["id"], "--terminate", as_nobody=True, code=None)
    assert one.ended()[0] != 0
    (after,) = records(t4).all()
    assert (after.wedged, after.fault) == (before.wedged, before.fault) == (False, "")
