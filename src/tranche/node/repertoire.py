"""What this process can do to a GPU: for each kind of step, the act that carries it out.

A repertoire is typed by the kinds that it knows: `Repertoire[A | B]` may stand where `Repertoire[A]` is asked for, and not the
other way round. So the type checker names every place where a kind lacks its act; at run time such a step is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Never, TypeVar

from tranche.core.state import GpuState
from tranche.hardware.driver import Driver
from tranche.node.mps_daemons import MpsDaemons
from tranche.node.timeslices import Timeslices
from tranche.planning.steps import Kinds, Step


@dataclass(frozen=True, slots=True)
class Tools:
    """What an act works with. `sleep` takes seconds."""

    driver: Driver
    daemons: MpsDaemons
    timeslices: Timeslices
    sleep: Callable[[float], None]

    def observe_gpu(self, gpu_uuid: str) -> GpuState:
        """One GPU as it is now, with its daemons; GpuNotFound when it is not there."""
        return self.timeslices.on_gpu(self.daemons.on_gpu(self.driver.observe_gpu(gpu_uuid)))


Known = TypeVar("Known", bound=Step, contravariant=True)
Added = TypeVar("Added", bound=Step)

Act = Callable[[Added, GpuState, Tools], None]
"""Tells the driver one step, for a GPU as it was last seen; it is called only while the step is not in effect."""


class Repertoire(Generic[Known]):
    """Kinds of step, each with its act."""

    def __init__(self, acts: Mapping[type[Step], Act[Any]]) -> None:
        self._acts = dict(acts)
        self._kinds = Kinds(self._acts)

    @property
    def kinds(self) -> Kinds:
        """The kinds that have an act."""
        return self._kinds

    def knowing(self, kind: type[Added], act: Act[Added]) -> Repertoire[Known | Added]:
        """This repertoire and one more kind of step with its act."""
        return Repertoire({**self._acts, kind: act})

    def check(self, steps: Iterable[Step]) -> None:
        """PlanInvalid when one of the steps has no act here."""
        for step in steps:
            self._kinds.check(step)

    def carry_out(self, step: Step, gpu: GpuState, tools: Tools) -> GpuState:
        """Do the step on the GPU, last seen as given; the GPU as it is afterwards. The step's own error when nothing shows."""
        self._kinds.check(step)
        self._acts[type(step)](step, gpu, tools)
        after = tools.observe_gpu(gpu.uuid)
        if not step.in_effect(after):
            raise step.not_shown(after)
        return after


NOTHING: Repertoire[Never] = Repertoire({})
