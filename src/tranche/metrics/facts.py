"""All that is known of a node when its metrics are read. None means unknown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.core.allocation import NodeView
from tranche.core.readings import GpuReading
from tranche.node.store.journal import ChangeKind, ChangeStatus, ChangeSummary


@dataclass(frozen=True, slots=True)
class LayoutFacts:
    """The layout that a node's label asks for, and its progress; `mismatched` counts GPUs that are cut otherwise."""

    name: str
    state: str
    reason: str = ""
    mismatched: int | None = None


@dataclass(frozen=True, slots=True)
class XidRecord:
    """How often a GPU reported one XID, and when last, in seconds since the epoch."""

    count: int
    last: float


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What only an agent knows. `xids` are by GPU UUID ("" when the driver names none) and number."""

    components: Mapping[str, bool]
    layout: LayoutFacts | None = None
    xids: Mapping[tuple[str, int], XidRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node at one moment; `now` and the times of waiters are seconds since the epoch, ages are in seconds.

    `waiting_since` is when each waiting request came, `changes` what the ledger counted.
    """

    now: float
    version: str
    view: NodeView | None = None
    view_age: float = 0.0
    readings: tuple[GpuReading, ...] | None = None
    readings_age: float = 0.0
    waiting_since: tuple[float, ...] | None = None
    changes: Mapping[tuple[ChangeKind, ChangeStatus], ChangeSummary] | None = None
    nvml_errors: Mapping[str, int] = field(default_factory=dict)
    agent: AgentFacts | None = None
