"""The fence of a shared machine: users open GPUs only in shares, and only the GPUs of the share.

The kernel enforces it by filters on control groups. The processes in a share's group can open only the share's devices. Those in
the groups of users' sessions can open no GPU, unless they are root's or of a user whom the administrator exempts. A share that
began before the fence has no group: its processes are in a session. So sessions keep their GPUs until the last such share ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tranche.core.allocation import HELD, Allocation
from tranche.core.errors import FenceUnavailable
from tranche.core.keeper import ProcessKeeper
from tranche.core.state import GpuProcess, GpuState, NodeState
from tranche.hardware.control_groups import LOGINS, remove_group, session_groups
from tranche.hardware.device_filter import FenceFilter, attach_filter, attached_filters, detach_filters, others_filters
from tranche.hardware.nodes import device_files
from tranche.hardware.process_stat import process_environment, process_group
from tranche.node.health.checkup import Finding, Status
from tranche.node.host import Host
from tranche.node.limits.fence import FENCED_SHARES, fenced_groups, top_group
from tranche.node.limits.share_groups import ShareGroupManager
from tranche.node.locks.locks import is_held
from tranche.node.processes.processes import MARK, process_at
from tranche.node.state.session import StateFolder
from tranche.node.store import chronicle, records, register

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

    `wanted` is the name of the rule that sessions should have. `unfenced` are the shares that began before the fence. `others`
    tells whether another register's fence also applies to sessions. `inside` are the programs that sessions keep from opening
    GPUs again, and `beyond` those out of the fence's reach.
    """

    exempt: frozenset[int] | None
    wanted: str
    sessions: tuple[SessionGroup, ...]
    unfenced: tuple[Allocation, ...]
    others: bool = False
    inside: tuple[FencedProcess, ...] = ()
    beyond: tuple[FencedProcess, ...] = ()

    @property
    def confined(self) -> bool:
        """Whether no session opens a GPU."""
        return bool(self.sessions) and all(each.rule == self.wanted for each in self.sessions)

    @property
    def due(self) -> bool:
        """Whether the sessions should have another filter than they have, or none. The shares from before keep them open."""
        has_rule = any(each.rule for each in self.sessions)
        if self.exempt is None:
            return has_rule
        return not self.confined and (has_rule or not self.unfenced)


def fence_now(
    exempt: frozenset[int] | None,
    allocations: Sequence[Allocation],
    groups: ShareGroupManager,
    environment: Mapping[str, str],
) -> FenceReport:
    """The fence as it is now, for those users and shares. Asks no driver. Needs root, or raises FenceUnavailable."""
    top, owner, fenced = top_group(), groups.owner, groups.fenced()
    found = session_groups(top)
    if _SYSTEMD.is_dir() and LOGINS not in found:
        found.append(LOGINS)  # before the first login, systemd has not made it yet
    rule = _session_rule(exempt or frozenset(), allocations, environment)
    return FenceReport(
        exempt,
        rule.name(owner),
        tuple(SessionGroup(each, "".join(attached_filters(top / each, owner))) for each in found),
        tuple(each for each in allocations if isinstance(each.keeper, ProcessKeeper) and each.id not in fenced),
        any(others_filters(top / each, owner) for each in found),
    )


def survey(host: Host, node: NodeState) -> FenceReport:
    """The fence as it is now, with the programs on that node. Needs root, or raises FenceUnavailable."""
    report = _report(host)
    paths = [each.path for each in report.sessions]
    outside = tuple(_outside(node, report.exempt or frozenset(), report.unfenced))
    return replace(
        report,
        inside=tuple(each for each in outside if _below(each.group, paths)),
        beyond=tuple(each for each in outside if not _below(each.group, paths)),
    )


def _report(host: Host) -> FenceReport:
    with host.ledger.read() as db:
        exempt, allocations = records.fence(db), register.allocations(db)
    return fence_now(exempt, allocations, host.share_groups, host.environment)


def service_runs(places: StateFolder) -> bool:
    """Whether the machine's service runs, as far as its lock can be read."""
    try:
        return is_held(places.service_lock)
    except OSError:
        return False


def check_fence(report: FenceReport, *, served: bool) -> Iterator[Finding]:
    """Whether the fence holds, if the machine has one. `served` tells whether the service runs."""
    if report.exempt is None:
        if any(each.rule for each in report.sessions):
            text = "the ledger has no fence, but sessions still cannot open GPUs"
            hint = "the service fixes this within seconds" if served else "start the service, which fixes this"
            yield Finding("fence", Status.WARN, text, hint)
        elif report.others:
            text = "the fence of another state folder keeps sessions from opening GPUs"
            yield Finding("fence", Status.WARN, text, "turn it off there, or restart the machine")
        return
    if not served:
        text = "the service that the fence needs is not running, so users get no GPUs"
        yield Finding("fence", Status.WARN, text, "run: sudo systemctl start tranche.service")
    if report.unfenced:
        shares = ", ".join(each.id for each in report.unfenced)
        text = f"sessions can open all GPUs until the shares started before the fence have ended: {shares}"
        yield Finding("fence", Status.WARN, text, "end a share with: tranche release ID --terminate")
    elif not report.sessions or not all(each.rule for each in report.sessions):
        groups = ", ".join(each.path for each in report.sessions if not each.rule) or "any control group"
        text = f"the fence does not apply to programs in {groups}"
        yield Finding("fence", Status.WARN, text, "turn it on again to see why: tranche policy fence --on")
    else:
        changing = "" if report.confined else "; exemptions take effect within seconds"
        yield Finding("fence", Status.PASS, f"users can open GPUs only in shares{changing}")
    for each in report.beyond:
        text = f"the fence does not apply to {each.process}, which uses the GPU from control group {each.group}"
        yield Finding("fence", Status.WARN, text, "", each.gpu.index)


def put_up(host: Host, exempt: frozenset[int]) -> None:
    """Put up the fence, which exempts root and these users. Nothing has changed if it raises FenceUnavailable."""
    with host.deciding():
        _prove(host)
        before = _set(host, exempt)
        try:
            _apply(host)
        except FenceUnavailable:
            _set(host, before)
            with suppress(FenceUnavailable):
                _apply(host)
            raise


def take_down(host: Host) -> None:
    """Let sessions open GPUs again; FenceUnavailable, before anything has changed, if this process does not see the groups."""
    with host.deciding():
        top_group()
        _set(host, None)
        _apply(host)


def tend(host: Host) -> None:
    """Bring the sessions' filters in line with the ledger. FenceUnavailable if the kernel refuses.

    If the ledger has never known a fence, but sessions have its filters, the ledger was lost: the fence stays, and exempts root.
    """
    if not _report(host).due:
        return
    with host.deciding():
        report = _report(host)
        if report.exempt is None and report.due:
            with host.ledger.read() as db:
                was_known = chronicle.knows_fence(db)
            if not was_known:
                _set(host, frozenset())
        _apply(host)


def _set(host: Host, exempt: frozenset[int] | None) -> frozenset[int] | None:
    """Write down the fence; returns the one before."""
    with host.ledger.write() as db:
        before = records.fence(db)
        records.set_fence(db, exempt)
        after = records.fence(db)
        if after != before:
            chronicle.fence_changed(db, host.clock(), after)
    return before


def _apply(host: Host) -> None:
    """Give the sessions the filters that are due, or take them away."""
    report = _report(host)
    if not report.due:
        return
    top, owner = top_group(), host.share_groups.owner
    if report.exempt is None:
        for each in report.sessions:
            detach_filters(top / each.path, owner)
        with suppress(OSError):  # a share has a group there
            (top / FENCED_SHARES).rmdir()
        return
    with host.ledger.read() as db:
        rule = _session_rule(report.exempt, register.allocations(db), host.environment)
    for each in report.sessions:
        (top / each.path).mkdir(exist_ok=True)
        attach_filter(top / each.path, rule, owner)


def _prove(host: Host) -> None:
    """Raises FenceUnavailable if the kernel does not enforce the fence on this machine."""
    for left in fenced_groups().glob("probe-*"):  # another command was killed
        remove_group(left)
    folder = fenced_groups() / f"probe-{os.getpid()}"
    try:
        folder.mkdir()
        attach_filter(folder, _session_rule(frozenset(), (), host.environment), host.share_groups.owner)
    except OSError as error:
        raise FenceUnavailable(
            f"cannot create the control group {folder}: {error.strerror}",
            hint="check cgroup.max.descendants in its parent groups",
        ) from error
    finally:
        remove_group(folder)
        with suppress(OSError):  # a share has a group there
            folder.parent.rmdir()


def _session_rule(
    exempt: frozenset[int], allocations: Iterable[Allocation], environment: Mapping[str, str]
) -> FenceFilter:
    """What sessions may open. A user who was exempt until now stays so until their holds, which are sessions, have ended."""
    numbers = device_files(environment).numbers()
    held = {each.keeper.uid for each in allocations if each.command == HELD and isinstance(each.keeper, ProcessKeeper)}
    return FenceFilter(numbers.majors, numbers.control, exempt | held | {_ROOT})


def _outside(node: NodeState, exempt: frozenset[int], unfenced: Iterable[Allocation]) -> Iterator[FencedProcess]:
    """The programs on GPUs that are in no share. Those of root and of exempt users are not told."""
    marks = {f"{MARK}={each.id}".encode() for each in unfenced}
    for gpu in node:
        for process in gpu.all_processes:
            found = process_at(process.pid)
            if found is None or found.uid == _ROOT or found.uid in exempt:
                continue
            with suppress(OSError):  # it has ended
                group = process_group(process.pid)
                if not _below(group, (FENCED_SHARES,)) and marks.isdisjoint(process_environment(process.pid)):
                    yield FencedProcess(process, found.uid, gpu, group)


def _below(group: str, folders: Iterable[str]) -> bool:
    return any(os.path.commonpath((group, each)) == each for each in folders if group)
