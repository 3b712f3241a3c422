"""Taking a share back or cancelling a waiting request, as `tranche release --terminate` does."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from tranche.core.allocation import Allocation
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.state import NodeState
from tranche.core.wire import grant_to_dict
from tranche.dashboard.acting.action import ActionPlan, ActionRef, Tell, digest_of, refuse_another
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents import describe
from tranche.local.termination import ReleasePreview, cancel_waiter, take_back, taking_back
from tranche.node.host import Host
from tranche.node.state.session import StateFolder, process_command

_GRACE_SECONDS = 10.0
_LONGEST_COMMAND = 40


@dataclass(frozen=True, slots=True)
class ReleaseAction:
    """Takes back the share or cancels the request with that id."""

    id: str

    @property
    def label(self) -> ActionRef:
        """Which action it is."""
        return ActionRef("release", "id", self.id, f"Take {self.id} back", "Take it back")

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do."""
        waiter = next((each for each in seen.queue if each.id == self.id), None)
        if waiter is not None:
            step = f"cancel the request {waiter.request}, and send SIGTERM to its command: {waiter.command}"
            digest, ends = _of_waiter(self.id, waiter.pid), _named(waiter.pid, waiter.command)
            return ActionPlan(((f"pid {waiter.pid}", step),), (), digest, f"tranche release {self.id}", ends=ends)
        allocation = next((each for each in seen.view.allocations if each.id == self.id), None)
        if allocation is None:
            raise AllocationUnknown(f"there is no share and no waiting request {self.id}", hint="it may have ended")
        command = f"tranche release {self.id}"
        try:
            found = taking_back(places, allocation)
            if not found.pids:
                found.refuse_if_in_use()
        except TrancheError as error:
            digest, refused = digest_of([self.label.name, error.message]), f"{error.message}. {error.hint}".strip()
            return ActionPlan((), (), digest, command, refused)
        return ActionPlan(
            (*_ending(found), *_given_back(allocation, seen.view.node)),
            (f"It was given to: {allocation.command}", "Slices stay on their GPU, idle, for the next request."),
            _of_share(found),
            f"{command} --terminate" if found.pids else command,
            ends=_ended(found.pids),
        )

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out that plan."""
        waiter = next((each for each in host.waiters() if each.id == self.id), None)
        if waiter is not None:
            refuse_another(plan, _of_waiter(self.id, waiter.pid))
            tell(f"cancel the waiting request {self.id}")
            if cancel_waiter(host, self.id) is None:
                raise AllocationUnknown(f"the request {self.id} waits no more")
            return f"The request was cancelled (pid {waiter.pid})."

        def confirm(found: ReleasePreview) -> None:
            refuse_another(plan, _of_share(found))
            for where, step in _ending(found):
                tell(f"{where}: {step}")

        ended = take_back(host, self.id, terminate=True, grace=_GRACE_SECONDS, confirm=confirm)
        said = [
            f"killed without draining, because the MPS daemon of {each.device_uuid} did not release it: {each.why}; "
            "programs that share the device may fail."
            for each in ended.undrained
        ]
        how = f" after {signal.Signals(ended.signal).name} to pid {_listed(ended.pids)}" if ended.signal else ""
        return " ".join([f"The share was taken back{how}.", *said])


def _ending(found: ReleasePreview) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"pid {pid}", f"SIGTERM, and SIGKILL after {_GRACE_SECONDS:g} s, to: {process_command(pid) or 'its program'}")
        for pid in found.pids
    )


def _given_back(allocation: Allocation, node: NodeState) -> tuple[tuple[str, str], ...]:
    return tuple(("share", f"give {describe.grant(each, node)} back") for each in allocation.grants)


def _ended(pids: tuple[int, ...]) -> str:
    return _named(pids[0], process_command(pids[0])) if len(pids) == 1 else f"pid {_listed(pids)}" if pids else ""


def _named(pid: int, command: str) -> str:
    """A process in few words."""
    shown = command if len(command) <= _LONGEST_COMMAND else f"{command[: _LONGEST_COMMAND - 1]}…"
    return f"pid {pid}: {shown}" if shown else f"pid {pid}"


def _listed(pids: tuple[int, ...]) -> str:
    return ", ".join(map(str, pids))


def _of_share(found: ReleasePreview) -> str:
    grants = [grant_to_dict(each) for each in found.allocation.grants]
    return digest_of(["share", found.allocation.id, list(found.pids), grants])


def _of_waiter(id: str, pid: int) -> str:
    return digest_of(["waiter", id, pid])
