"""Which of several equally cheap places a slice takes: swappable rules over memory-slice masks.

A policy sees only geometry, so it cannot break a safety rule: what is offered to it is already allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tranche.planning.tables import Geometry, fragmentation, potential


@dataclass(frozen=True, slots=True)
class Policy:
    """A named rule. `cost(geometry, before, after)` scores taking a place that turns mask `before` into `after`; low wins.

    Ties go to the GPU of the lowest index, then to the lowest start.
    """

    name: str
    cost: Callable[[Geometry, int, int], float]


def _first_fit(geometry: Geometry, before: int, after: int) -> float:
    return 0.0


def _best_fit(geometry: Geometry, before: int, after: int) -> float:
    return geometry.units - after.bit_count()


def _fragmentation_gradient(geometry: Geometry, before: int, after: int) -> float:
    return fragmentation(geometry, after) - fragmentation(geometry, before)


def _potential(geometry: Geometry, before: int, after: int) -> float:
    return potential(geometry, before) - potential(geometry, after)


FIRST_FIT = Policy("first-fit", _first_fit)
BEST_FIT = Policy("best-fit", _best_fit)
FRAGMENTATION_GRADIENT = Policy("fragmentation-gradient", _fragmentation_gradient)
TABLE = Policy("table", _potential)
DEFAULT = TABLE
POLICIES = {policy.name: policy for policy in (FIRST_FIT, BEST_FIT, FRAGMENTATION_GRADIENT, TABLE)}
