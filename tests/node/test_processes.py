"""Who may have inherited a share: by name, or because nobody can look."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import needs_root
from tests.node.processes import Child, in_child
from tests.support.in_process import NOBODY
from tranche.core.keeper import KeeperStatus, ProcessKeeper
from tranche.hardware.nvml_instances import process_name
from tranche.node.processes.keeping import RemainingProcesses
from tranche.node.processes.processes import (
    MARK,
    FoundProcesses,
    Process,
    digest_of,
    find_traces,
    heeds_sigterm,
    may_have_inherited,
    process_at,
)
from tranche.node.state.session import process_start_time

# Another process may run the same tests at the same time, and its processes are seen as well.
ALLOCATION = uuid.uuid4().hex[:8]
SHARE, OTHER = 1000, 1001
INIT = Process(1, 0, 0, 0)


def suspects(*processes: Process, since: int = 100) -> list[int]:
    table = {each.pid: each for each in (INIT, *processes)}
    return [each.pid for each in may_have_inherited(processes, table.get, uid=SHARE, since=since)]


def test_an_orphan_of_the_same_user_that_started_later_may_have_inherited() -> None:
    assert suspects(Process(10, 1, SHARE, 100)) == [10]


def test_what_started_before_or_is_another_user_s_has_not() -> None:
    assert suspects(Process(10, 1, SHARE, 99), Process(11, 1, OTHER, 200)) == []


def test_a_login_of_the_same_user_has_not() -> None:
    """Its parent is a server's process that started later as well, and is no orphan of the share."""
    server, login = Process(10, 1, 0, 200), Process(11, 10, SHARE, 201)
    assert suspects(server, login) == []


def test_nobody_is_suspected_of_a_command_whose_start_is_not_known() -> None:
    assert suspects(Process(10, 1, SHARE, 100), since=0) == []


def test_a_suspect_s_children_are_suspects() -> None:
    assert suspects(Process(10, 1, SHARE, 100), Process(11, 10, SHARE, 101)) == [10, 11]


@given(
    st.lists(
        st.builds(
            Process, st.integers(2, 60), st.integers(0, 60), st.sampled_from([0, SHARE, OTHER]), st.integers(0, 300)
        )
    )
)
def test_nobody_is_suspected_who_cannot_be_of_the_share(processes: list[Process]) -> None:
    unique = list({each.pid: each for each in processes}.values())
    found = set(suspects(*unique))
    for each in unique:
        if each.pid in found:
            assert each.uid == SHARE
            assert each.started >= 100
        elif each.uid == SHARE and each.started >= 100:
            parent = {1: INIT, **{other.pid: other for other in unique}}.get(each.parent)
            assert parent is None or parent.started >= 100


def test_a_process_is_found_by_the_name_of_its_share() -> None:
    with subprocess.Popen(["sleep", "600"], env={MARK: ALLOCATION, "PATH": "/bin:/usr/bin"}) as process:
        found = find_traces(ALLOCATION, uid=os.getuid(), since=0)
        assert [each.pid for each in found.inherited] == [process.pid]
        assert found.inherited[0] == process_at(process.pid)
        assert found.inherited[0].started == process_start_time(process.pid)
        assert find_traces("abcd123", uid=os.getuid(), since=0).inherited == ()
        process.kill()
    assert find_traces(ALLOCATION, uid=os.getuid(), since=0).inherited == ()


@pytest.mark.parametrize("name", [b") \xff (", b"\x1cUid:\t7", b"\x85Uid: 7", b"\x1cSigCgt:\t4000"])
def test_a_process_may_have_any_name(tmp_path: Path, name: bytes) -> None:
    program = tmp_path / os.fsdecode(name)
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as running:
        try:
            found = process_at(running.pid)
            assert not heeds_sigterm(running.pid)
            assert process_name(running.pid)
        finally:
            running.kill()
    assert found is not None
    assert (found.parent, found.uid) == (os.getpid(), os.getuid())


@needs_root
def test_a_process_that_cannot_be_looked_at_is_not_taken_for_gone() -> None:
    def become_nobody() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    def hide() -> None:
        # Who gave root up and has run no program since may not be looked at by its own user.
        become_nobody()
        signal.pause()

    child = Child(hide)
    try:
        while (here := process_at(child.pid)) is None or here.uid != NOBODY:
            pass

        def look() -> FoundProcesses:
            become_nobody()
            return find_traces(ALLOCATION, uid=NOBODY, since=here.started)

        traces = in_child(look)
        assert [each.pid for each in traces.hidden] == [child.pid]
        assert RemainingProcesses(traces=traces).life is KeeperStatus.UNKNOWN
        kept = RemainingProcesses(traces=traces).keeper(ProcessKeeper())
        assert kept is not None
        assert (kept.pid, kept.suspected) == (child.pid, True)
        assert find_traces(ALLOCATION, uid=NOBODY, since=0).hidden == (), "root can look"
    finally:
        child.end()


def test_a_name_with_spaces_and_parentheses_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) Z (c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "600"]) as process:
        while "a) Z (c" not in Path(f"/proc/{process.pid}/stat").read_text():
            pass
        found = process_at(process.pid)
        assert found is not None
        assert (found.parent, found.uid) == (os.getpid(), os.getuid())
        process.kill()


@needs_root
def test_another_user_cannot_keep_a_share_by_its_name_and_its_own_processes_can_under_any_user() -> None:
    def trace(**environment: str) -> bool:
        """Whether a process of nobody's with that environment counts as one of the share of root's."""
        own = {MARK: ALLOCATION, "PATH": "/bin:/usr/bin", **environment}
        with subprocess.Popen(["sleep", "600"], env=own, user=NOBODY, group=NOBODY, extra_groups=[]) as process:
            try:
                found = find_traces(ALLOCATION, uid=0, since=1, key_digest=digest_of("secret"))
                return process.pid in {each.pid for each in found.inherited}
            finally:
                process.kill()

    assert not trace()
    assert not trace(TRANCHE_KEY="")
    assert not trace(TRANCHE_KEY=digest_of("secret")), "what everybody can read in the register is not the key"
    assert trace(TRANCHE_KEY="secret")
