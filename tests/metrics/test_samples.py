"""What is known becomes samples, each once; what is not known becomes none; sums over slices are those of the hardware."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.metrics.strategies import NOW, node_facts
from tests.strategies import gpu_on, instance_of, uncuttable_gpu, view_of
from tests.support.length import cases
from tranche.core.allocation import Allocation, ComputeSlice, FractionalShare, NodeView, Phase, Slice, WholeGpu
from tranche.core.board import Board, board_by_key
from tranche.core.grid import Placement
from tranche.core.keeper import Keeper, PodKeeper, ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.readings import ActivityReading, GpuReading, SliceReading
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.core.state import ComputeInstance, GpuInstance, MigMode, NodeState
from tranche.metrics import catalogue, dcgm
from tranche.metrics.catalogue import HistogramValue, MetricFamily, MetricSample
from tranche.metrics.exposition import exposed
from tranche.metrics.facts import NodeFacts
from tranche.metrics.samples import MetricNameSet, named_samples, node_samples

few = settings(max_examples=cases(25))  # nodes are large: 25 have thousands of samples


def of(samples: tuple[MetricSample, ...], family: MetricFamily) -> list[MetricSample]:
    return [each for each in samples if each.family == family]


def total(samples: tuple[MetricSample, ...], family: MetricFamily, **labels: str) -> float:
    """The sum over the samples with those labels, as PromQL's sum gives it."""
    found = [each.value for each in of(samples, family) if labels.items() <= each.labels.items()]
    return sum(each for each in found if not isinstance(each, HistogramValue))


@few
@given(node_facts())
def test_every_sample_has_its_familys_labels_and_stands_once(facts: NodeFacts) -> None:
    families, samples = named_samples(facts, MetricNameSet.BOTH, "node")
    for sample in samples:
        assert sample.labels.keys() == set(sample.family.labels), sample
    assert max(Counter((each.family, *sorted(each.labels.items())) for each in samples).values()) == 1
    assert {each.family for each in samples} <= set(families)


def test_shares_whose_limits_are_lost_are_counted_for_their_device() -> None:
    gpu = uncuttable_gpu()
    turns = FractionalShare(WholeGpu(gpu.uuid), 1, Sharing.TIME_SLICING)
    for kept, lost in ((2, 0), (1, 2), (0, 0)):
        part = FractionalShare(WholeGpu(gpu.uuid), 1, Sharing.MPS)
        grants = [part] * kept + [part._replace(unlimited=True)] * lost + [turns]
        held = [
            Allocation(str(n), Request(WholeGpus(1)), (grant,), Phase.ACTIVE, 1.0) for n, grant in enumerate(grants)
        ]
        view = NodeView(NodeState((gpu,)), tuple(held))
        found = of(node_samples(NodeFacts(now=NOW, version="1", view=view, view_age=0.0)), catalogue.SHARES_UNLIMITED)
        assert [(each.value, each.labels["mig_uuid"]) for each in found] == ([(lost, "")] if kept else [])


@few
@given(node_facts())
def test_both_texts_are_what_parsers_take(facts: NodeFacts) -> None:
    families, samples = named_samples(facts, MetricNameSet.BOTH, "node")
    text = exposed(families, samples, in_openmetrics=True)[0].decode()
    parsed = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    assert {each.name for each in parsed} == {each.family.name for each in samples}
    assert "# EOF" not in exposed(families, samples, in_openmetrics=False)[0].decode()


@few
@given(node_facts())
def test_memory_of_slices_sums_up_to_that_of_the_gpu_instances(facts: NodeFacts) -> None:
    samples = node_samples(facts)
    readings = {} if facts.view is None else {each.gpu_uuid: each for each in facts.readings or ()}
    for uuid, reading in readings.items():
        for family, name in (
            (catalogue.SLICE_MEMORY_TOTAL, "memory_total"),
            (catalogue.SLICE_MEMORY_USED, "memory_used"),
        ):
            measured = [value for each in reading.slices.values() if (value := getattr(each, name)) is not None]
            assert total(samples, family, gpu_uuid=uuid) == sum(measured)
        assert total(samples, catalogue.SLICE_MEMORY_TOTAL, gpu_uuid=uuid) <= (reading.memory_total or 0)
        assert total(samples, catalogue.SLICE_COMPUTE, gpu_uuid=uuid) <= 1 + 1e-9


@few
@given(node_facts())
def test_power_and_energy_are_the_nodes_under_both_names(facts: NodeFacts) -> None:
    samples, aliases = node_samples(facts), tuple(dcgm.dcgm_samples(facts, "node"))
    readings = () if facts.view is None else facts.readings or ()
    power = sum(each.power for each in readings if each.power is not None)
    assert total(samples, catalogue.GPU_POWER) == power
    by_name = {each.name: each.family for each in dcgm.NAMES}
    assert total(aliases, by_name["DCGM_FI_DEV_POWER_USAGE"]) == power
    energy = sum(each.energy for each in readings if each.energy is not None)
    assert total(aliases, by_name["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]) == pytest.approx(1000 * energy)


@few
@given(node_facts())
def test_what_was_not_measured_has_no_sample(facts: NodeFacts) -> None:
    blind = replace(facts, readings=() if facts.readings is not None else None)
    measured = {
        catalogue.GPU_MEMORY_USED,
        catalogue.GPU_UTILIZATION,
        catalogue.GPU_SM_ACTIVE,
        catalogue.GPU_POWER,
        catalogue.GPU_POWER_LIMIT,
        catalogue.GPU_ENERGY,
        catalogue.GPU_TEMPERATURE,
        catalogue.SLICE_MEMORY_TOTAL,
        catalogue.SLICE_MEMORY_USED,
        catalogue.SLICE_GRAPHICS,
        catalogue.SLICE_SM,
        catalogue.SLICE_OCCUPANCY,
        catalogue.SLICE_TENSOR,
        catalogue.SLICE_BANDWIDTH,
    }
    assert not {each.family for each in node_samples(blind)} & measured
    assert not list(dcgm.dcgm_samples(replace(blind, agent=None), "node"))
    nothing = node_samples(NodeFacts(now=NOW, version="1"))
    assert [each.family for each in nothing] == [catalogue.BUILD]


@few
@given(node_facts())
def test_each_slice_has_one_state_and_each_gpu_one(facts: NodeFacts) -> None:
    samples = node_samples(facts)
    node = NodeState(()) if facts.view is None else facts.view.node
    devices = Counter(each.labels["gpu_uuid"] for each in of(samples, catalogue.SLICE_STATE) if each.labels["mig_uuid"])
    for gpu in node:
        assert total(samples, catalogue.GPU_LOST, gpu_uuid=gpu.uuid) == int(gpu.lost)
        assert total(samples, catalogue.GPU_STATE, gpu_uuid=gpu.uuid) == int(not gpu.lost)
        uuids = [ci.uuid for instance in gpu.instances for ci in instance.compute_instances if ci.uuid]
        assert devices[gpu.uuid] == len(uuids)


@few
@given(node_facts(), st.sampled_from(["readings", "view"]))
def test_ages_are_said_where_there_is_something_to_be_old(facts: NodeFacts, what: str) -> None:
    samples = node_samples(replace(facts, view_age=3.0, readings_age=7.0))
    found = {each.labels["what"]: each.value for each in of(samples, catalogue.OBSERVATION_AGE)}
    expected = {}
    if facts.view is not None:
        expected["slices"] = 3.0
    if facts.readings is not None:
        expected["readings"] = 7.0
    assert found == expected


# One H100: a 1g that a pod has, a 3g in two pieces for two pods, and a 2g without a compute instance.
def h100() -> Board:
    board = board_by_key("H100-80GB-SXM")
    assert board is not None
    return board


def made_of(board: Board, name: str, start: int) -> GpuInstance:
    (profile,) = (each for each in board.profiles if str(each.name) == name)
    return instance_of(profile, Placement(start, profile.size))


def _allocation(name: str, keeper: Keeper, *grants: Slice | ComputeSlice | WholeGpu) -> Allocation:
    return Allocation(name, Request(WholeGpus(1)), grants, Phase.ACTIVE, 100.0, keeper=keeper)


def _pod(name: str) -> PodKeeper:
    return PodKeeper("nvidia.com/gpu", "team", name, "main", name, "run")


def shared_h100() -> NodeFacts:
    board = h100()
    one, three, two = (made_of(board, name, start) for name, start in (("1g.10gb", 0), ("3g.40gb", 4), ("2g.20gb", 2)))
    pieces = tuple(
        ComputeInstance(number, parse_profile("1c.3g.40gb"), 0, number, 1, f"MIG-piece-{number}", None)
        for number in (0, 1)
    )
    three = three._replace(compute_instances=pieces)
    two = two._replace(compute_instances=())
    gpu = gpu_on(board, instances=(one, two, three))
    inside = Slice(gpu.uuid, three.profile, three.placement)
    allocations = (
        _allocation("a", _pod("small"), Slice(gpu.uuid, one.profile, one.placement)),
        _allocation("b", _pod("left"), ComputeSlice(inside, pieces[0].name, 0, 1)),
        _allocation("c", _pod("right"), ComputeSlice(inside, pieces[1].name, 1, 1)),
    )
    busy = ActivityReading(0.5, 0.5, 0.2, 0.1, 0.3)
    reading = GpuReading(
        gpu.uuid,
        slices={one.id: SliceReading(10, 1, busy), three.id: SliceReading(40, 20, busy), two.id: SliceReading()},
    )
    return NodeFacts(now=200.0, version="1", view=replace(view_of(gpu), allocations=allocations), readings=(reading,))


def test_a_slice_carries_its_pod_and_memory_that_several_share_stands_once() -> None:
    samples = node_samples(shared_h100())
    used = {
        (each.labels["profile"], each.labels["placement"], each.labels["pod"]): each.value
        for each in of(samples, catalogue.SLICE_MEMORY_USED)
    }
    assert used == {("1g.10gb", "0:1", "small"): 1.0, ("3g.40gb", "4:4", ""): 20.0}
    states = {
        (each.labels["profile"], each.labels["placement"], each.labels["pod"]): each.labels["state"]
        for each in of(samples, catalogue.SLICE_STATE)
    }
    assert states == {
        ("1g.10gb", "0:1", "small"): "held",
        ("2g.20gb", "2:2", ""): "idle",
        ("1c.3g.40gb", "4:4/0:1", "left"): "held",
        ("1c.3g.40gb", "4:4/1:1", "right"): "held",
    }
    assert total(samples, catalogue.SLICE_COMPUTE) == pytest.approx((1 + 2 + 1 + 1) / 7)
    assert [
        (each.labels["pod"], each.labels["keeper"], each.value) for each in of(samples, catalogue.HOLDER_START)
    ] == [
        ("small", "pod", 100.0),
        ("left", "pod", 100.0),
        ("right", "pod", 100.0),
    ]


def test_dcgms_lines_name_the_gpu_and_the_instance() -> None:
    aliases = tuple(dcgm.dcgm_samples(shared_h100(), "node-1"))
    used = of(aliases, dcgm.NAMES[0].family)
    (small,) = (each for each in used if each.labels["GPU_I_PROFILE"] == "1g.10gb")
    assert small.labels["UUID"].startswith("GPU-")
    assert (small.labels["pod"], small.labels["namespace"], small.labels["hostname"]) == ("small", "team", "node-1")
    assert small.value == 1 / 2**20
    assert len(used) == 2


def test_a_gpu_that_a_process_holds_whole_is_held_and_no_pods() -> None:
    gpu = gpu_on(h100(), mode=MigMode.DISABLED)
    view = NodeView(NodeState((gpu,)), (_allocation("a", ProcessKeeper(42), WholeGpu(gpu.uuid)),))
    samples = node_samples(NodeFacts(now=200.0, version="1", view=view))
    (state,) = of(samples, catalogue.GPU_STATE)
    assert (state.labels["state"], state.labels["pod"]) == ("held", "")
    (holder,) = of(samples, catalogue.HOLDER_START)
    assert (holder.labels["keeper"], holder.labels["mig_uuid"]) == ("process", "")


def test_the_queue_says_how_long_its_first_waits_and_nothing_when_it_is_empty() -> None:
    for since, expected in (((150.0, 120.0), [80.0]), ((), []), ((300.0,), [0.0])):
        samples = node_samples(NodeFacts(now=200.0, version="1", waiting_since=since))
        assert [each.value for each in of(samples, catalogue.QUEUE_OLDEST)] == expected
        assert [each.value for each in of(samples, catalogue.QUEUE)] == [float(len(since))]
