"""Cordoning and uncordoning a GPU, as `tranche cordon` and `uncordon` do."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tranche.core.state import GpuState
from tranche.dashboard.acting.action import ActionPlan, ActionRef, Tell, digest_of, refuse_another
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.slices import why_withheld
from tranche.local.queue import Queue
from tranche.node.host import Host
from tranche.node.policy_change import cordon, uncordon
from tranche.node.state.session import StateFolder

_REASON = "from the dashboard"
_ASKS = "Why, for whoever waits because of it"


@dataclass(frozen=True, slots=True)
class CordonAction:
    """Cordons the GPU with that UUID. `reason` is the sender's own words, not part of the plan."""

    gpu_uuid: str
    reason: str = ""

    @property
    def label(self) -> ActionRef:
        """Which action it is."""
        return ActionRef("cordon", "gpu", self.gpu_uuid, "Cordon the GPU", "Cordon it", _ASKS)

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do."""
        gpu = seen.view.node.gpu(self.gpu_uuid)
        why = why_withheld(seen.view, gpu)
        steps = () if why else ((gpu.label, "give nothing more of it away"),)
        holders = sum(any(grant.gpu_uuid == gpu.uuid for grant in each.grants) for each in seen.view.allocations)
        facts = [f"{gpu.label} is {why}."] if why else [f"Whoever has something of it keeps it: {holders} now."]
        return ActionPlan(steps, tuple(facts), self._digest(gpu, why), f"tranche cordon {gpu.index}")

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out that plan."""
        view = host.view()
        gpu = view.node.gpu(self.gpu_uuid)
        refuse_another(plan, self._digest(gpu, why_withheld(view, gpu)))
        tell(f"{gpu.label}: give nothing more of it away")
        cordon(host, gpu, user=_user(host), reason=self.reason.strip() or _REASON, clock=time.time)
        return f"Nothing more is given away of {gpu.label}."

    def _digest(self, gpu: GpuState, why: str) -> str:
        return digest_of([self.label.name, gpu.index, why])


@dataclass(frozen=True, slots=True)
class UncordonAction:
    """Uncordons the GPU with that UUID."""

    gpu_uuid: str

    @property
    def label(self) -> ActionRef:
        """Which action it is."""
        return ActionRef("uncordon", "gpu", self.gpu_uuid, "Give the GPU away again", "Give it away again")

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do."""
        gpu = seen.view.node.gpu(self.gpu_uuid)
        why = why_withheld(seen.view, gpu)
        steps = ((gpu.label, "give it away again"),) if why else ()
        facts = (f"{gpu.label} is {why}." if why else f"{gpu.label} is not cordoned.",)
        return ActionPlan(steps, facts, self._digest(gpu, why), f"tranche uncordon {gpu.index}")

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out that plan."""
        view = host.view()
        gpu = view.node.gpu(self.gpu_uuid)
        refuse_another(plan, self._digest(gpu, why_withheld(view, gpu)))
        tell(f"{gpu.label}: give it away again")
        if not uncordon(host, gpu, user=_user(host), clock=time.time):
            return f"{gpu.label} was not cordoned any more."
        Queue(host).ring_next()
        return f"{gpu.label} is given away again."

    def _digest(self, gpu: GpuState, why: str) -> str:
        return digest_of([self.label.name, gpu.index, why])


def _user(host: Host) -> str:
    assert host.actor is not None, "a page acts for somebody"
    return host.actor.user
