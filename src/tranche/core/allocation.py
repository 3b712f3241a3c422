"""What a workload was given. An allocation is not an instance: the instance outlives it, idle, until its room is needed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tranche.core.grid import Occupant, Placement
from tranche.core.profile import ProfileName
from tranche.core.request import Isolation, Request
from tranche.core.state import InstanceKey, NodeState


class Phase(StrEnum):
    """PREPARING: room is promised and the plan runs. ACTIVE: granted; the workload may run."""

    PREPARING = "preparing"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Grant:
    """One piece of GPU: a whole GPU (no profile), or the GPU instance of a profile at a placement."""

    gpu_uuid: str
    profile: ProfileName | None = None
    placement: Placement | None = None

    @property
    def whole_gpu(self) -> bool:
        """Whether the grant is a GPU that is not cut."""
        return self.profile is None

    @property
    def key(self) -> InstanceKey | None:
        """The instance slot that the grant takes; None for a whole GPU."""
        if self.profile is None or self.placement is None:
            return None
        return InstanceKey(self.gpu_uuid, self.profile, self.placement)

    @property
    def mechanism(self) -> str:
        """The word for how the share is made."""
        return "whole" if self.whole_gpu else "mig"

    @property
    def isolation(self) -> Isolation:
        """How strong the fence around it is."""
        return Isolation.HARD


@dataclass(frozen=True, slots=True)
class Allocation:
    """A share that is promised or granted.

    `holder_pid` is the process that keeps it (0 before it is known) and `command` what it runs, for people. `created` is seconds
    since the epoch.
    """

    id: str
    request: Request
    grants: tuple[Grant, ...]
    phase: Phase
    created: float
    command: str = ""
    holder_pid: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything a decision may look at: the hardware, what is promised, and which instances Tranche made.

    `changing` names the GPUs that a declared layout is re-cutting right now; nothing may be granted on them. Invariants of a
    view: no two grants overlap, and a whole GPU that is granted carries no other grant.
    """

    node: NodeState
    allocations: tuple[Allocation, ...] = ()
    owned: frozenset[InstanceKey] = frozenset()
    changing: frozenset[str] = frozenset()

    def grants_on(self, gpu_uuid: str) -> tuple[Grant, ...]:
        """Every grant on that GPU."""
        return tuple(g for allocation in self.allocations for g in allocation.grants if g.gpu_uuid == gpu_uuid)

    def promised_on(self, gpu_uuid: str) -> tuple[Occupant, ...]:
        """The grid places that grants hold on that GPU, whether their instances exist yet or not."""
        return tuple(
            Occupant(grant.profile, grant.placement)
            for grant in self.grants_on(gpu_uuid)
            if grant.profile is not None and grant.placement is not None
        )

    def holder_of(self, key: InstanceKey) -> Allocation | None:
        """The allocation that holds that instance slot."""
        for allocation in self.allocations:
            if any(grant.key == key for grant in allocation.grants):
                return allocation
        return None
