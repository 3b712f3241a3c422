"""A node's facts as samples, under our names for metrics, DCGM's, or both. Pure. Unknown facts have no sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from tranche.core.allocation import Allocation, FractionalShare, NodeView, device_uuid
from tranche.core.keeper import ClaimKeeper, Keeper, PlacedPodKeeper, PodKeeper
from tranche.core.readings import NOT_MEASURED
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState, unavailable
from tranche.metrics import catalogue, dcgm
from tranche.metrics.catalogue import HistogramValue, MetricFamily, MetricSample
from tranche.metrics.devices import MeasuredGpu, MeasuredSlice, measured_gpus, measured_slices
from tranche.metrics.facts import AgentFacts, NodeFacts
from tranche.node.store.journal import BOUNDS


class MetricNameSet(StrEnum):
    """DCGM: only what dcgm-exporter has a name for."""

    TRANCHE = "tranche"
    DCGM = "dcgm"
    BOTH = "both"


def named_samples(
    facts: NodeFacts, names: MetricNameSet, hostname: str
) -> tuple[tuple[MetricFamily, ...], tuple[MetricSample, ...]]:
    """The families in their order, and every sample; `hostname` is a label of DCGM's."""
    families: tuple[MetricFamily, ...] = ()
    samples: tuple[MetricSample, ...] = ()
    if names is not MetricNameSet.DCGM:
        families, samples = catalogue.FAMILIES, node_samples(facts)
    if names is not MetricNameSet.TRANCHE:
        families, samples = (*families, *dcgm.FAMILIES), (*samples, *dcgm.dcgm_samples(facts, hostname))
    return families, samples


def node_samples(facts: NodeFacts) -> tuple[MetricSample, ...]:
    """Every sample, in no particular order."""
    found = [_sample(catalogue.BUILD, 1, version=facts.version)]
    found += _of_view(facts)
    if facts.readings is not None:
        found.append(_sample(catalogue.OBSERVATION_AGE, facts.readings_age, what="readings"))
    if facts.waiting_since is not None:
        found.append(_sample(catalogue.QUEUE, len(facts.waiting_since)))
        oldest = min(facts.waiting_since, default=None)
        found += _known(catalogue.QUEUE_OLDEST, None if oldest is None else max(facts.now - oldest, 0.0))
    for (kind, outcome), totals in (facts.changes or {}).items():
        value = HistogramValue(BOUNDS, totals.counts, totals.seconds)
        found.append(MetricSample(catalogue.CHANGES, {"kind": kind, "outcome": outcome}, value))
    found += [_sample(catalogue.NVML_ERRORS, count, error=name) for name, count in sorted(facts.nvml_errors.items())]
    if facts.agent is not None:
        found += _of_agent(facts, facts.agent)
    return tuple(found)


def _of_view(facts: NodeFacts) -> Iterator[MetricSample]:
    view = facts.view
    if view is None:
        return
    yield _sample(catalogue.OBSERVATION_AGE, facts.view_age, what="slices")
    node = view.node
    cuda = "" if node.cuda_version is None else ".".join(map(str, node.cuda_version))
    yield _sample(catalogue.DRIVER, 1, driver_version=node.driver_version, cuda_version=cuda)
    for gpu in node:
        yield _sample(catalogue.GPU_LOST, int(gpu.lost), gpu_uuid=gpu.uuid, gpu=str(gpu.index))
        for daemon in gpu.daemons:
            mig_uuid = "" if daemon.slot is None else daemon.device_uuid
            why = unavailable(gpu, daemon.slot)
            yield _sample(catalogue.SHARED_FENCED, int(bool(why)), gpu_uuid=gpu.uuid, mig_uuid=mig_uuid)
        for mig_uuid, unlimited in _unlimited_shares(view, gpu).items():
            yield _sample(catalogue.SHARES_UNLIMITED, unlimited, gpu_uuid=gpu.uuid, mig_uuid=mig_uuid)
    readings = {each.gpu_uuid: each for each in facts.readings or ()}
    for whole in measured_gpus(view, readings):
        yield from _of_gpu(whole, changing=whole.gpu.uuid in view.changing)
    for part in measured_slices(view, readings):
        yield from _of_slice(part)


def _unlimited_shares(view: NodeView, gpu: GpuState) -> Mapping[str, int]:
    """How many shares have lost their limits, for each device of the GPU shared with limits; "" is the GPU itself."""
    found: dict[str, int] = {}
    for allocation in view.allocations:
        for grant in allocation.grants:
            if (
                isinstance(grant, FractionalShare)
                and grant.gpu_uuid == gpu.uuid
                and grant.sharing is not Sharing.TIME_SLICING
            ):
                uuid = "" if grant.slot is None else device_uuid(grant, gpu)
                found[uuid] = found.get(uuid, 0) + grant.unlimited
    return found


def _of_gpu(whole: MeasuredGpu, *, changing: bool) -> Iterator[MetricSample]:
    gpu, reading, use = whole.gpu, whole.reading, whole.labels
    only = {"gpu_uuid": gpu.uuid}
    yield _sample(
        catalogue.GPU_INFO,
        1,
        **only,
        gpu=str(gpu.index),
        name=gpu.name,
        architecture=gpu.architecture,
        pci_bus_id=gpu.pci_bus_id,
    )
    yield _sample(catalogue.GPU_STATE, 1, **use, state=whole.state)
    yield from _known(catalogue.GPU_MIG, int(gpu.mig_enabled) if gpu.mig_capable else None, only)
    yield _sample(catalogue.GPU_CHANGING, int(changing), **only)
    yield _sample(catalogue.GPU_MEMORY_TOTAL, gpu.memory, **only)
    yield from _holders(whole.holders, {**only, "mig_uuid": "", "profile": "", "placement": ""})
    if reading is not None:
        yield from _known(catalogue.GPU_MEMORY_USED, reading.memory_used, use)
        yield from _known(catalogue.GPU_UTILIZATION, reading.utilization, use)
        yield from _known(catalogue.GPU_SM_ACTIVE, reading.activity.sm, use)
        yield from _known(catalogue.GPU_POWER, reading.power, only)
        yield from _known(catalogue.GPU_POWER_LIMIT, reading.power_limit, only)
        yield from _known(catalogue.GPU_ENERGY, reading.energy, only)
        yield from _known(catalogue.GPU_TEMPERATURE, reading.temperature, only)


def _of_slice(part: MeasuredSlice) -> Iterator[MetricSample]:
    labels = part.labels
    if part.state is not None:
        yield _sample(catalogue.SLICE_STATE, 1, **labels, state=part.state)
        total = max((profile.slices for profile in part.gpu.profiles), default=0)
        yield from _known(catalogue.SLICE_COMPUTE, part.compute_slices / total if total else None, labels)
        yield from _holders(part.holders, labels)
        processes = part.row.instance if part.piece is None else part.piece
        yield from _known(catalogue.SLICE_PROCESSES, None if processes is None else len(processes.processes), labels)
    reading = part.reading
    if reading is None:
        return
    yield from _known(catalogue.SLICE_MEMORY_TOTAL, reading.memory_total, labels)
    yield from _known(catalogue.SLICE_MEMORY_USED, reading.memory_used, labels)
    if reading.activity != NOT_MEASURED:
        yield from _known(catalogue.SLICE_GRAPHICS, reading.activity.graphics, labels)
        yield from _known(catalogue.SLICE_SM, reading.activity.sm, labels)
        yield from _known(catalogue.SLICE_OCCUPANCY, reading.activity.occupancy, labels)
        yield from _known(catalogue.SLICE_TENSOR, reading.activity.tensor, labels)
        yield from _known(catalogue.SLICE_BANDWIDTH, reading.activity.memory, labels)


def _of_agent(facts: NodeFacts, agent: AgentFacts) -> Iterator[MetricSample]:
    for name, ready in agent.components.items():
        yield _sample(catalogue.COMPONENT_READY, int(ready), component=name)
    gpus = [] if facts.view is None else [gpu.uuid for gpu in facts.view.node if not gpu.lost]
    for uuid in dict.fromkeys([*gpus, *(uuid for uuid, _ in agent.xids)]):
        count = sum(record.count for (of, _), record in agent.xids.items() if of == uuid)
        yield _sample(catalogue.XID_ERRORS, count, gpu_uuid=uuid)
    for (uuid, xid), record in agent.xids.items():
        yield _sample(catalogue.XID_LAST, record.last, gpu_uuid=uuid, xid=str(xid))
    if (layout := agent.layout) is not None:
        yield _sample(catalogue.LAYOUT_STATE, 1, layout=layout.name, state=layout.state, reason=layout.reason)
        yield from _known(catalogue.LAYOUT_MISMATCHED, layout.mismatched, {"layout": layout.name})


def _holders(holders: Iterable[Allocation], device: Mapping[str, str]) -> Iterator[MetricSample]:
    """A sample for each holder. Processes that share a device have no names, so they have one sample, since the first came."""
    since: dict[tuple[tuple[str, str], ...], float] = {}
    for each in holders:
        names = (*_pod(each.keeper).items(), ("keeper", _kind(each.keeper)))
        since[names] = min(each.created, since.get(names, each.created))
    for names, created in since.items():
        yield MetricSample(catalogue.HOLDER_START, {**device, **dict(names)}, created)


def _pod(keeper: Keeper) -> Mapping[str, str]:
    if isinstance(keeper, PodKeeper):
        return {"namespace": keeper.namespace, "pod": keeper.name, "container": keeper.container}
    if isinstance(keeper, PlacedPodKeeper):
        return {"namespace": keeper.namespace, "pod": keeper.name, "container": ""}
    return {"namespace": "", "pod": "", "container": ""}


def _kind(keeper: Keeper) -> str:
    if isinstance(keeper, PodKeeper | PlacedPodKeeper):
        return "pod"
    return "claim" if isinstance(keeper, ClaimKeeper) else "process"


def _sample(family: MetricFamily, value: float, **labels: str) -> MetricSample:
    return MetricSample(family, labels, float(value))


def _known(
    family: MetricFamily, value: float | None, labels: Mapping[str, str] | None = None
) -> Iterable[MetricSample]:
    return () if value is None else (MetricSample(family, labels or {}, float(value)),)
