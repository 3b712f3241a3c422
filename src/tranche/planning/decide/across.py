"""The machine that serves a request best. One machine serves the whole request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.core.request import Request
from tranche.planning.decide.allocate import Granted, MachineOption, offer


@dataclass(frozen=True, slots=True)
class ChosenMachine:
    """The chosen machine, by name, and what it grants."""

    name: str
    granted: Granted


@dataclass(frozen=True, slots=True)
class NoMachine:
    """No machine can serve the request now; with the reason of each by name. If `possible` is False, none ever could."""

    reasons: Mapping[str, str]
    possible: bool


def decide_across(machines: Mapping[str, NodeView], request: Request) -> ChosenMachine | NoMachine:
    """The machine that serves the request best, by the preferences of a single machine's decision.

    Ties go to the machine with more allocations, so that empty machines stay empty, and then to the first by name.
    """
    best: tuple[tuple[object, ...], ChosenMachine] | None = None
    reasons: dict[str, str] = {}
    possible = False
    for name, view in machines.items():
        try:
            found = offer(view, request)
        except TrancheError as error:
            reasons[name] = error.message
            continue
        possible = True
        if not isinstance(found, MachineOption):
            reasons[name] = "; ".join(found.reasons)
            continue
        rank = (found.preferences, -len(view.allocations), name)
        if best is None or rank < best[0]:
            best = (rank, ChosenMachine(name, found.granted))
    return NoMachine(reasons, possible) if best is None else best[1]
