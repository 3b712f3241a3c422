"""What the two steps have in common that bring a GPU from one MIG mode to the other."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

from tranche.core.errors import ModeChangePending
from tranche.core.state import GpuState, InstanceKey
from tranche.planning.steps.step import PriorState, Step
from tranche.planning.steps.taking import TakesGpu, Taking


@dataclass(frozen=True, slots=True)
class ModeStep(Step, ABC):
    """A step of a change of MIG mode, which concerns the whole GPU."""

    @property
    def takes(self) -> tuple[Taking, ...]:
        """The whole GPU."""
        return (TakesGpu(),)

    @property
    def changes_mode(self) -> bool:
        """It does."""
        return True

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """The mode that is effective now."""
        return PriorState(gpu.mode)

    def not_shown(self, after: GpuState) -> ModeChangePending:
        """The change stays pending."""
        return ModeChangePending(
            f"{after.label}: MIG mode is {after.mode}, the change to {after.pending_mode} stays pending",
            hint="something holds the GPU: stop what uses it, or reboot the machine, and run the command again",
        )
