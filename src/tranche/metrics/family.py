"""A metric as data: its name, unit and labels, and when it has no value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class MetricKind(StrEnum):
    """As OpenMetrics calls them."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


UNITS = frozenset({"bytes", "celsius", "joules", "ratio", "seconds", "watts"})
"""Base units; a name ends with its own. A ratio is 0 to 1."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric. `name` is that of OpenMetrics: a counter's samples are called `<name>_total`.

    `absent` says when a GPU, a slice or the node has no sample of it; a missing sample is the only way to say unknown. `agent`
    marks what only an agent knows, because it watches a node as long as it runs.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    absent: str = "never"
    agent: bool = False

    @property
    def unit(self) -> str:
        """The base unit; "" for numbers of things."""
        last = self.name.rsplit("_", 1)[-1]
        return last if last in UNITS else ""

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which samples are stored."""
        match self.kind:
            case MetricKind.GAUGE:
                return (self.name,)
            case MetricKind.COUNTER:
                return (f"{self.name}_total",)
            case MetricKind.HISTOGRAM:
                return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """The value of a histogram: counts by upper bound, each counted once, and their sum. The last bound is infinite."""

    bounds: tuple[float, ...]
    counts: Mapping[float, int] = field(default_factory=dict)
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric; `labels` has every label of the family, "" where one does not apply."""

    family: MetricFamily
    labels: Mapping[str, str]
    value: float | HistogramValue
