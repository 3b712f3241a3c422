"""Which of several machines serves a request best. A request is served by one machine, whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.core.request import Request
from tranche.planning.decide.allocate import Granted, MachineOption, offer


@dataclass(frozen=True, slots=True)
class ChosenMachine:
    """The machine, by its name, and what it gives."""

    name: str
    granted: Granted


@dataclass(frozen=True, slots=True)
class NoMachine:
    """None can serve the request now; why, for each of them by name. Where `possible` is False none ever could."""

    reasons: Mapping[str, str]
    possible: bool


def decide_across(machines: Mapping[str, NodeView], request: Request) -> ChosenMachine | NoMachine:
    """The machine that serves the request in the best way, by the preferences of one machine's decision.

    Among equals the one with more allocations, so that empty machines stay empty, and then the first by name.
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
