"""The fence of a shared machine: users open GPUs only in shares, and only the GPUs of the share.

The kernel enforces it by filters on control groups. The processes in a share's group can open only the share's devices. Those in
the groups of users' sessions can open no GPU, unless they are root's or of a user whom the administrator exempts. A share that
began before the fence has no group: its processes are in a session. So sessions keep their GPUs until the last such share ends.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tranche.core.allocation import Allocation
from tranche.core.errors import FenceUnavailable
from tranche.core.keeper import ProcessKeeper
from tranche.core.state import GpuProcess, GpuState, NodeState
from tranche.hardware.control_groups import make_group, remove_group
from tranche.hardware.device_filter import FenceFilter, attach_filter, attached_filters, detach_filters
from tranche.hardware.nodes import device_files
from tranche.hardware.process_stat import process_environment, process_groups
from tranche.node.health.checkup import Finding, Status
from tranche.node.host import Host
from tranche.node.limits.fence import FENCED_SHARES, fenced_groups, top_group
from tranche.node.limits.share_groups import ShareGroupManager
from tranche.node.processes.processes import MARK, process_at
from tranche.node.store import records, register

_LOGINS: Final = "user.slice"
_SESSIONS: Final = (
    _LOGINS,
    "system.slice/cron.service",
    "system.slice/crond.service",
    "system.slice/atd.service",
)
"""Where systemd starts what users log in to or schedule. Cron daemons and at may be absent."""
_SYSTEMD: Final = Path("/run/systemd/system")
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class SessionGroup:
    """A control group of users' sessions, by its path below the top. Without a `rule`, its processes may open every GPU."""

    path: str
    rule: str


@dataclass(frozen=True, slots=True)
class FencedProcess:
    """A program of a user on a GPU outside every share; `group` is its control group."""

    process: GpuProcess
    uid: int
    gpu: GpuState
    group: str


@dataclass(frozen=True, slots=True)
class FenceReport:
    """The fence as it is. `exempt` are the uids to whom sessions are open, None without the fence.

    `wanted` is the name of the rule that sessions should have. `unfenced` are the shares that began before the fence. `inside`
    are the programs that sessions keep from opening GPUs again, and `beyond` those out of the fence's reach.
    """

    exempt: frozenset[int] | None
    wanted: str
    sessions: tuple[SessionGroup, ...]
    unfenced: tuple[Allocation, ...]
    inside: tuple[FencedProcess, ...] = ()
    beyond: tuple[FencedProcess, ...] = ()

    @property
    def confined(self) -> bool:
        """Whether no session opens a GPU."""
        return bool(self.sessions) and all(each.rule == self.wanted for each in self.sessions)

    @property
    def due(self) -> bool:
        """Whether the sessions should be confined now, and are not."""
        return self.exempt is not None and not self.unfenced and not self.confined


def survey(host: Host, node: NodeState | None = None) -> FenceReport:
    """The fence as it is now, with the programs on that node. Needs root, or raises FenceUnavailable."""
    with host.ledger.read() as db:
        exempt, allocations = records.fence(db), register.allocations(db)
    top, owner = top_group(), host.share_groups.owner
    found = [each for each in _SESSIONS if (top / each).is_dir()]
    sessions = tuple(SessionGroup(each, "".join(attached_filters(top / each, owner))) for each in found)
    unfenced = _unfenced(allocations, host.share_groups.fenced())
    outside = tuple(_outside(node, exempt or frozenset(), unfenced)) if node is not None else ()
    return FenceReport(
        exempt,
        _session_rule(host, exempt or frozenset()).name(owner),
        sessions,
        unfenced,
        tuple(each for each in outside if _below(each.group, found)),
        tuple(each for each in outside if not _below(each.group, found)),
    )


def check_fence(report: FenceReport) -> Iterator[Finding]:
    """Whether the fence holds, if the machine has one."""
    if report.exempt is None:
        if any(each.rule for each in report.sessions):
            text = "the fence is off, but sessions still open no GPU"
            yield Finding("fence", Status.WARN, text, "open them with: tranche policy fence --off")
        return
    if report.unfenced:
        shares = ", ".join(each.id for each in report.unfenced)
        text = f"sessions open all GPUs until the shares from before the fence have ended: {shares}"
        yield Finding("fence", Status.WARN, text, "end a share with: tranche release ID --terminate")
    elif not report.confined:
        text = "programs outside shares open all GPUs, although the machine has a fence"
        yield Finding("fence", Status.WARN, text, "see whether systemd and the service run: systemctl status tranche")
    else:
        yield Finding("fence", Status.PASS, "users open GPUs only in shares")
    for each in report.beyond:
        text = f"the fence does not reach {each.process}, which uses the GPU in control group {each.group}"
        yield Finding("fence", Status.WARN, text, "", each.gpu.index)


def prove(host: Host) -> None:
    """Raises FenceUnavailable if the kernel does not enforce the fence on this machine; leaves nothing behind."""
    folder = fenced_groups() / f"probe-{os.getpid()}"
    make_group(folder)
    try:
        attach_filter(folder, _session_rule(host, frozenset()), host.share_groups.owner)
        if not attached_filters(folder, host.share_groups.owner):
            raise FenceUnavailable(
                "the kernel accepted a device filter, but does not show it", hint="use a kernel of 5.10 or later"
            )
    finally:
        remove_group(folder)
        with host.ledger.read() as db:
            fenced = records.fence(db) is not None
        if not fenced:
            _remove_shares_group()


def sessions_due(allocations: Iterable[Allocation], groups: ShareGroupManager) -> bool:
    """Whether a group of sessions has no filter although no share is left that began before the fence. Asks no driver."""
    if _unfenced(allocations, groups.fenced()):
        return False
    top = top_group()
    if _SYSTEMD.is_dir() and not (top / _LOGINS).is_dir():
        return True
    return any((top / each).is_dir() and not attached_filters(top / each, groups.owner) for each in _SESSIONS)


def confine_sessions(host: Host) -> FenceReport:
    """Keep sessions from opening GPUs if that is due; returns the fence as it is then. FenceUnavailable if the kernel refuses."""
    with host.deciding():
        report = survey(host)
        if not report.due:
            return report
        top, owner = top_group(), host.share_groups.owner
        if _SYSTEMD.is_dir():
            (top / _LOGINS).mkdir(exist_ok=True)  # before the first login, systemd has not made it yet
        rule = _session_rule(host, report.exempt or frozenset())
        for each in _SESSIONS:
            if (top / each).is_dir():
                attach_filter(top / each, rule, owner)
        return survey(host)


def open_sessions(host: Host) -> None:
    """Let sessions open GPUs again; FenceUnavailable if the kernel refuses. Call it without the fence."""
    with host.deciding():
        for each in _SESSIONS:
            detach_filters(top_group() / each, host.share_groups.owner)
        _remove_shares_group()


def _remove_shares_group() -> None:
    with suppress(OSError):  # a share has a group there
        fenced_groups().rmdir()


def _session_rule(host: Host, exempt: frozenset[int]) -> FenceFilter:
    numbers = device_files(host.environment).numbers()
    return FenceFilter(numbers.majors, numbers.control, exempt | {_ROOT})


def _unfenced(allocations: Iterable[Allocation], fenced: Collection[str]) -> tuple[Allocation, ...]:
    return tuple(each for each in allocations if isinstance(each.keeper, ProcessKeeper) and each.id not in fenced)


def _outside(node: NodeState, exempt: frozenset[int], unfenced: Iterable[Allocation]) -> Iterator[FencedProcess]:
    """The programs on GPUs that are in no share. Those of root and of exempt users are not told."""
    marks = {f"{MARK}={each.id}".encode() for each in unfenced}
    for gpu in node:
        for process in gpu.all_processes:
            found = process_at(process.pid)
            if found is None or found.uid == _ROOT or found.uid in exempt:
                continue
            with suppress(OSError):  # it has ended
                group = _version_2(process_groups(process.pid))
                if not _below(group, (FENCED_SHARES,)) and marks.isdisjoint(process_environment(process.pid)):
                    yield FencedProcess(process, found.uid, gpu, group)


def _version_2(groups: str) -> str:
    """The process's group of version 2, from the top, in what the kernel lists."""
    return next((line[3:].strip("/") for line in groups.splitlines() if line.startswith("0::")), "")


def _below(group: str, folders: Iterable[str]) -> bool:
    return any(os.path.commonpath((group, each)) == each for each in folders if group)
