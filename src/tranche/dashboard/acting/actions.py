"""What the pages of a machine can do. Each action shows a plan, then follows that plan or does nothing."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlencode

from tranche.core.allocation import Allocation, NodeView
from tranche.core.errors import AllocationUnknown, StateMoved, TrancheError
from tranche.core.state import GpuState, NodeState
from tranche.core.wire import grant_to_dict
from tranche.dashboard.acting.forms import digest_of
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents import describe
from tranche.documents.layout_change import counted, decision_data, sum_up
from tranche.documents.slices import why_withheld
from tranche.local.queue import Queue
from tranche.local.termination import ReleasePreview, cancel_waiter, take_back, taking_back
from tranche.node.change import Change
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.policy_change import cordon, uncordon
from tranche.node.state.session import StateFolder, process_command
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.reconfigure import LayoutDecision, plan_layout
from tranche.planning.steps import Step
from tranche.planning.steps.plan import plan_to_dict, with_daemons

_GRACE_SECONDS = 10.0
_LONGEST_COMMAND = 40
_NO_REASON = "from the dashboard"

Tell = Callable[[str], None]
"""Called with each step as it begins, from several threads."""


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """What would be done now. `steps` say where and what; `facts` are what else the user has to know.

    `refused` says why it cannot be done now. `digest` changes whenever anything in the plan does. `command` does the same in a
    terminal. `ends` names the processes that it ends, "" for none.
    """

    steps: tuple[tuple[str, str], ...]
    facts: tuple[str, ...]
    digest: str
    command: str
    refused: str = ""
    ends: str = ""

    @property
    def possible(self) -> bool:
        """Whether there is something to do and nothing in the way."""
        return bool(self.steps) and not self.refused


@dataclass(frozen=True)
class DashboardAction(ABC):
    """One thing to do to `target`, such as taking one share back. `reason` is the sender's own words, not part of the plan.

    `kind` is in its page's address, and `field` names the target there; `verb` is on its button. `asks` is what its form asks for
    as the reason; "" for nothing.
    """

    target: str
    reason: str = ""

    kind: ClassVar[str]
    field: ClassVar[str]
    verb: ClassVar[str]
    asks: ClassVar[str] = ""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it does, in short."""

    @abstractmethod
    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do; TrancheError where it is impossible. Asks no driver."""

    @abstractmethod
    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out the plan with that digest and say how it went; StateMoved, with nothing done, when the plan has changed."""

    @property
    def name(self) -> str:
        """Unique among actions."""
        return f"{self.kind} {self.target}"

    @property
    def fields(self) -> dict[str, str]:
        """The fields of its form, and of its page's address."""
        return {self.field: self.target}

    def address(self, plan: str = "", *, moved: bool = False) -> str:
        """The address of its current plan, or of that digest's. `moved` says that another plan was confirmed."""
        more = {**({"plan": plan} if plan else {}), **({"moved": "1"} if moved else {})}
        return f"/act/{self.kind}?{urlencode({**self.fields, **more})}"


class ReleaseAction(DashboardAction):
    """Takes back the share or cancels the waiting request with that id, as `tranche release --terminate` does."""

    kind, field, verb = "release", "id", "Release it"

    @property
    def title(self) -> str:
        """What it does, in short."""
        return f"Release {self.target}"

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do."""
        command = f"tranche release {self.target}"
        waiter = next((each for each in seen.queue if each.id == self.target), None)
        if waiter is not None:
            step = f"cancel the request {waiter.request}, and send SIGTERM to its command: {waiter.command}"
            digest, ends = _of_waiter(self.target, waiter.pid), _named(waiter.pid, waiter.command)
            return ActionPlan(((f"pid {waiter.pid}", step),), (), digest, command, ends=ends)
        allocation = next((each for each in seen.view.allocations if each.id == self.target), None)
        if allocation is None:
            raise AllocationUnknown(f"no share or waiting request has the id {self.target}", hint="it may have ended")
        try:
            found = taking_back(places, allocation)
            if not found.pids:
                found.refuse_if_in_use()
        except TrancheError as error:
            digest, refused = digest_of([self.name, error.message]), f"{error.message}. {error.hint}".strip()
            return ActionPlan((), (), digest, command, refused)
        return ActionPlan(
            (*_ending(found), *_given_back(allocation, seen.view.node)),
            (f"It was granted to: {allocation.command}", "Idle slices remain on their GPU for the next request."),
            _of_share(found),
            f"{command} --terminate" if found.pids else command,
            ends=_ended(found.pids),
        )

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out that plan."""
        waiter = next((each for each in host.waiters() if each.id == self.target), None)
        if waiter is not None:
            _refuse_another(plan, _of_waiter(self.target, waiter.pid))
            tell(f"cancel the waiting request {self.target}")
            if cancel_waiter(host, self.target) is None:
                raise AllocationUnknown(f"request {self.target} is no longer waiting")
            return f"The request was cancelled (pid {waiter.pid})."

        def confirm(found: ReleasePreview) -> None:
            _refuse_another(plan, _of_share(found))
            for where, step in _ending(found):
                tell(f"{where}: {step}")

        ended = take_back(host, self.target, terminate=True, grace=_GRACE_SECONDS, confirm=confirm)
        said = [
            f"Processes were killed without draining, because the MPS daemon of {each.device_uuid} did not release them: "
            f"{each.why}. Programs that share the device may fail."
            for each in ended.undrained
        ]
        how = f" after {signal.Signals(ended.signal).name} to pid {_listed(ended.pids)}" if ended.signal else ""
        return " ".join([f"The share was released{how}.", *said])


class _GpuAction(DashboardAction):
    field = "gpu"
    step: ClassVar[str]

    def _planned(self, gpu: GpuState, why: str, fact: str, *, needless: bool) -> ActionPlan:
        steps = () if needless else ((gpu.label, self.step),)
        return ActionPlan(steps, (fact,), self._digest(gpu, why), f"tranche {self.kind} {gpu.index}")

    def _begun(self, host: Host, plan: str, tell: Tell) -> tuple[GpuState, str]:
        """The GPU, and the user in whose name it is done."""
        assert host.actor is not None, "a page acts for somebody"
        view = host.view()
        gpu = view.node.gpu(self.target)
        _refuse_another(plan, self._digest(gpu, why_withheld(view, gpu)))
        tell(f"{gpu.label}: {self.step}")
        return gpu, host.actor.user

    def _digest(self, gpu: GpuState, why: str) -> str:
        return digest_of([self.name, gpu.index, why])


class CordonAction(_GpuAction):
    """Cordons the GPU with that UUID, as `tranche cordon` does."""

    kind, verb, title = "cordon", "Cordon it", "Cordon the GPU"
    asks = "Reason, shown to users who wait because of it"
    step = "stop serving new requests"

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do."""
        gpu = seen.view.node.gpu(self.target)
        why = why_withheld(seen.view, gpu)
        holders = sum(any(grant.gpu_uuid == gpu.uuid for grant in each.grants) for each in seen.view.allocations)
        fact = f"{gpu.label} is {why}." if why else f"Current holders keep their shares: {holders}."
        return self._planned(gpu, why, fact, needless=bool(why))

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out that plan."""
        gpu, user = self._begun(host, plan, tell)
        cordon(host, gpu, user=user, reason=self.reason.strip() or _NO_REASON, clock=time.time)
        return f"{gpu.label} serves no new requests."


class UncordonAction(_GpuAction):
    """Uncordons the GPU with that UUID, as `tranche uncordon` does."""

    kind, verb, title = "uncordon", "Uncordon it", "Uncordon the GPU"
    step = "serve new requests again"

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do."""
        gpu = seen.view.node.gpu(self.target)
        why = why_withheld(seen.view, gpu)
        return self._planned(gpu, why, f"{gpu.label} is {why or 'not cordoned'}.", needless=not why)

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out that plan."""
        gpu, user = self._begun(host, plan, tell)
        if not uncordon(host, gpu, user=user, clock=time.time):
            return f"{gpu.label} was no longer cordoned."
        Queue(host).ring_next()
        return f"{gpu.label} serves new requests again."


class LayoutAction(DashboardAction):
    """Applies the layout of that name, one of those generated for the machine, as `tranche layout apply` does."""

    kind, field, verb = "layout", "layout", "Apply the layout"

    @property
    def title(self) -> str:
        """What it does, in short."""
        return f"Apply the layout {self.target}"

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do."""
        view = seen.view
        decision = self._decided(view)
        labels = {gpu.uuid: gpu.label for gpu in view.node}
        steps = with_daemons(decision.plan, (), view).steps
        kept = sum(len(change.cut.kept) for change in decision.changes)
        facts = [f"Kept, with the same UUIDs: {counted(kept, 'slice')}."] if kept else []
        lost = [f"The driver cannot reach {each}, so it stays unchanged." for each in decision.lost]
        return ActionPlan(
            tuple((labels[step.gpu_uuid], str(step)) for step in steps),
            (*facts, *decision.warnings, *lost),
            _of_layout(decision, view),
            f"tranche layout apply -c {self.target}",
            "; ".join(str(each) for each in decision.blockers),
        )

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out that plan."""

        def decide(view: NodeView) -> LayoutDecision:
            decision = self._decided(view)
            decision.refuse_if_blocked()
            _refuse_another(plan, _of_layout(decision, view))
            return decision

        def progress(gpu: GpuState, step: Step) -> None:
            tell(f"{gpu.label}: {step}")

        decision = Change(host, HookRunner(), WaitLimit(wait=False), progress=progress).to_layout(decide)
        decision.refuse_if_lost()
        return f"The GPUs match the layout: {sum_up(decision)}."

    def _decided(self, view: NodeView) -> LayoutDecision:
        return plan_layout(view, generate_layouts(view.node).select(self.target))


_ACTIONS: Mapping[str, type[DashboardAction]] = {
    each.kind: each for each in (ReleaseAction, CordonAction, UncordonAction, LayoutAction)
}


def action_of(kind: str, fields: Mapping[str, str]) -> DashboardAction | None:
    """The action that a form or its page's address names; None when there is none."""
    found = _ACTIONS.get(kind)
    target = "" if found is None else fields.get(found.field, "")
    return found(target, fields.get("reason", "")) if found is not None and target else None


def _refuse_another(confirmed: str, now: str) -> None:
    """Raise StateMoved unless the plan is the confirmed one."""
    if confirmed != now:
        raise StateMoved("the machine has changed since you saw the plan")


def _ending(found: ReleasePreview) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"pid {pid}",
            f"send SIGTERM, and SIGKILL after {_GRACE_SECONDS:g} s, to: {process_command(pid) or 'its program'}",
        )
        for pid in found.pids
    )


def _given_back(allocation: Allocation, node: NodeState) -> tuple[tuple[str, str], ...]:
    return tuple(("share", f"release {describe.grant(each, node)}") for each in allocation.grants)


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


def _of_layout(decision: LayoutDecision, view: NodeView) -> str:
    blockers = [str(each) for each in decision.blockers]
    return digest_of([plan_to_dict(with_daemons(decision.plan, (), view)), decision_data(decision), blockers])
