"""The kinds of step that are known somewhere. What is not among them is refused, never passed over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tranche.core.errors import PlanInvalid, TrancheError
from tranche.planning.steps.step import Step


class Kinds:
    """A closed set of kinds of step, which decodes them and refuses all others."""

    def __init__(self, kinds: Iterable[type[Step]]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the kinds, in the order in which they were given."""
        return tuple(self._kinds)

    def check(self, step: Step) -> None:
        """PlanInvalid when the step is of no kind that is known here."""
        if self._kinds.get(type(step).__name__) is not type(step):
            raise _unknown(type(step).__name__)

    def decode(self, data: Mapping[str, Any]) -> Step:
        """The step that Step.to_dict wrote; PlanInvalid when it is not one, or of no kind that is known here."""
        try:
            kind = self._kinds.get(data["action"])
            step = None if kind is None else kind.from_fields(str(data["gpu"]), data)
        except (KeyError, TypeError, ValueError, OverflowError, TrancheError) as error:
            raise PlanInvalid(f"a step of the plan cannot be read: {data!s:.200}") from error
        if step is None:
            raise _unknown(data["action"])
        return step


def _unknown(action: object) -> PlanInvalid:
    return PlanInvalid(
        f"the plan has a step of unknown action {action!r}",
        hint="this version of Tranche cannot carry it out; use the version that made the plan",
    )
