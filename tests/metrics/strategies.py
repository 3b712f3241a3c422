"""Nodes with everything that an agent may know of them, and readings as GPUs of their kind give them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.strategies import node_views
from tranche.core.readings import NOT_MEASURED, ActivityReading, GpuReading, SliceReading
from tranche.core.state import GpuInstance, GpuState
from tranche.metrics.facts import AgentFacts, LayoutFacts, NodeFacts, XidRecord
from tranche.node.store.journal import BOUNDS, ChangeKind, ChangeStatus, ChangeSummary

NOW = 1_800_000_000.0
_RATIOS = st.floats(0, 1)


def _optional(values: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | values


@st.composite
def activities(draw: st.DrawFn) -> ActivityReading:
    """Of hardware that measures activity, and maybe not all of it."""
    return ActivityReading(*(draw(_optional(_RATIOS)) for _ in range(5)))


@st.composite
def _slice_readings(draw: st.DrawFn, instance: GpuInstance, *, counters: bool) -> SliceReading:
    total = instance.memory if draw(st.booleans()) and instance.compute_instances else None
    used = None if total is None else draw(st.integers(0, total))
    return SliceReading(total, used, draw(activities()) if counters else NOT_MEASURED)


@st.composite
def gpu_readings(draw: st.DrawFn, gpu: GpuState) -> GpuReading:
    """Of one GPU."""
    counters = gpu.architecture in ("Hopper", "Blackwell")
    gauges = _optional(st.floats(0, 1000))
    return GpuReading(
        gpu.uuid,
        gpu.memory,
        draw(st.integers(0, gpu.memory)),
        power=draw(gauges),
        power_limit=draw(gauges),
        energy=draw(gauges),
        temperature=draw(gauges),
        utilization=None if gpu.mig_enabled else draw(_optional(_RATIOS)),
        activity=draw(activities()) if counters and not gpu.mig_enabled else NOT_MEASURED,
        slices={each.id: draw(_slice_readings(each, counters=counters)) for each in gpu.instances},
    )


@st.composite
def node_facts(draw: st.DrawFn) -> NodeFacts:
    """A node as an agent knows it; also one of which it knows little."""
    view = draw(node_views())
    readings = tuple(draw(gpu_readings(gpu)) for gpu in view.node if not gpu.lost)
    totals = st.builds(ChangeSummary, st.dictionaries(st.sampled_from(BOUNDS), st.integers(1, 1000)), st.floats(0, 1e6))
    places = st.tuples(st.sampled_from(ChangeKind), st.sampled_from(ChangeStatus))
    xids = st.tuples(st.sampled_from(["", *(gpu.uuid for gpu in view.node)]), st.integers(1, 150))
    agent = AgentFacts(
        draw(st.dictionaries(st.sampled_from(["inventory", "node-watch"]), st.booleans())),
        draw(st.none() | st.just(LayoutFacts("all-1g.5gb", "pending", "GpuBusy", 2))),
        draw(st.dictionaries(xids, st.builds(XidRecord, st.integers(1, 9), st.floats(0, NOW)), max_size=4)),
    )
    return NodeFacts(
        now=NOW,
        version="1",
        view=draw(st.sampled_from([view, view, view, None])),
        readings=draw(st.sampled_from([readings, readings, None])),
        waiting_since=draw(st.none() | st.lists(st.floats(0, NOW), max_size=3).map(tuple)),
        changes=draw(st.none() | st.dictionaries(places, totals)),
        nvml_errors=draw(st.dictionaries(st.sampled_from(["UNKNOWN", "GPU_IS_LOST"]), st.integers(1, 9))),
        agent=draw(st.none() | st.just(agent)),
    )
