"""The labels of GPU feature discovery, for nodes that are whole, cut alike, cut unlike and cut wrongly."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.grid_model import carry_out
from tests.kubernetes.mig_manager.mig_world import gpu
from tests.strategies import node_views, uncuttable_gpu, view_of
from tranche.core.allocation import NodeView
from tranche.core.quantity import MIB
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.hardware.host_facts import HostFacts, read_host_facts
from tranche.kubernetes.feature_labels.labels import changed_labels, feature_labels, is_feature_label
from tranche.kubernetes.node.replicas import ReplicaPolicy, SharedResource
from tranche.kubernetes.node.resources import MigStrategy
from tranche.planning.layouts.named_layouts import LayoutList
from tranche.planning.layouts.reconfigure import plan_layout

FACTS = HostFacts("PowerEdge XE9680 (rev. 2)", {"00000000:10:00.0": "0x030200", "00000000:11:00.0": "0x030200"})
COMMON = {
    "nvidia.com/cuda.driver-version.full": "550.107.02",
    "nvidia.com/cuda.driver-version.major": "550",
    "nvidia.com/cuda.driver-version.minor": "107",
    "nvidia.com/cuda.driver-version.revision": "02",
    "nvidia.com/cuda.driver.major": "550",
    "nvidia.com/cuda.driver.minor": "107",
    "nvidia.com/cuda.driver.rev": "02",
    "nvidia.com/cuda.runtime-version.full": "12.5",
    "nvidia.com/cuda.runtime-version.major": "12",
    "nvidia.com/cuda.runtime-version.minor": "5",
    "nvidia.com/cuda.runtime.major": "12",
    "nvidia.com/cuda.runtime.minor": "5",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.family": "ampere",
    "nvidia.com/gpu.machine": "PowerEdge-XE9680-rev.-2",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mps.capable": "false",
}
WHOLE = {
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.memory": "40960",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
}
SMALL = {
    "count": "14",
    "engines.copy": "1",
    "engines.decoder": "0",
    "engines.encoder": "0",
    "engines.jpeg": "0",
    "engines.ofa": "0",
    "memory": "4864",
    "multiprocessors": "14",
    "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    "replicas": "1",
    "sharing-strategy": "none",
    "slices.ci": "1",
    "slices.gi": "1",
}


def node(*gpus: GpuState) -> NodeState:
    return NodeState(
        tuple(replace(g, compute_capability=(8, 0), memory=40960 * MIB) for g in gpus),
        "550.107.02",
        "12.550.107",
        (12, 5),
    )


def cut(view: NodeView, layout: str) -> tuple[GpuState, ...]:
    return carry_out(view, plan_layout(view, LayoutList().select(layout, view.node)).plan).node.gpus


def a100s(layout: str) -> NodeState:
    return node(*cut(view_of(gpu("A100-40GB", 0), gpu("A100-40GB", 1)), layout))


@pytest.mark.parametrize("strategy", MigStrategy)
def test_whole_gpus(strategy: MigStrategy) -> None:
    labels = feature_labels(a100s("all-disabled"), strategy, FACTS)
    said = {} if strategy is MigStrategy.NONE else {"nvidia.com/mig.strategy": str(strategy)}
    assert labels == {**COMMON, **WHOLE, **said}


def test_slices_that_are_alike_are_the_gpus_of_strategy_single() -> None:
    labels = feature_labels(a100s("all-1g.5gb"), MigStrategy.SINGLE, FACTS)
    slices = {f"nvidia.com/gpu.{part}": value for part, value in SMALL.items()}
    assert labels == {**COMMON, **slices, "nvidia.com/mig.strategy": "single"}


@pytest.mark.parametrize("layout", ["all-balanced", "all-enabled"])
def test_slices_that_differ_or_are_missing_are_invalid_for_strategy_single(layout: str) -> None:
    labels = feature_labels(a100s(layout), MigStrategy.SINGLE, FACTS)
    assert labels == {
        **COMMON,
        "nvidia.com/gpu.count": "0",
        "nvidia.com/gpu.memory": "0",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID",
        "nvidia.com/gpu.replicas": "0",
        "nvidia.com/gpu.sharing-strategy": "",
        "nvidia.com/mig.strategy": "single",
    }


def test_strategy_mixed_describes_each_kind_of_slice_beside_the_gpus() -> None:
    labels = feature_labels(a100s("all-balanced"), MigStrategy.MIXED, FACTS)
    base = {**COMMON, **WHOLE, "nvidia.com/gpu.replicas": "0", "nvidia.com/mig.strategy": "mixed"}
    small = {f"nvidia.com/mig-1g.5gb.{part}": value for part, value in SMALL.items()}
    assert base.items() <= labels.items()
    assert {**small, "nvidia.com/mig-1g.5gb.count": "4"}.items() <= labels.items()
    assert labels["nvidia.com/mig-2g.10gb.count"] == labels["nvidia.com/mig-3g.20gb.count"] == "2"
    assert labels["nvidia.com/mig-3g.20gb.slices.gi"] == "3"
    assert len(labels) == len(base) + 3 * len(SMALL)


def test_a_gpu_that_is_not_cut_is_for_sale_whole_under_mixed() -> None:
    cut_one = cut(view_of(gpu("A100-40GB", 0)), "all-7g.40gb")[0]
    labels = feature_labels(node(cut_one, gpu("A100-40GB", 1, mode=MigMode.DISABLED)), MigStrategy.MIXED, FACTS)
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.replicas"]) == ("2", "1")


def rules(name: str, replicas: int, offered_as: str = "") -> ReplicaPolicy:
    return ReplicaPolicy((SharedResource(name, replicas, offered_as or name),))


def test_shared_gpus_say_so_unless_their_replicas_have_a_name_of_their_own() -> None:
    labels = feature_labels(a100s("all-disabled"), MigStrategy.NONE, FACTS, rules("nvidia.com/gpu", 10))
    shared = {"nvidia.com/gpu.replicas": "10", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    named = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED"}
    assert labels == {**COMMON, **WHOLE, **shared, **named}
    renamed = rules("nvidia.com/gpu", 10, "nvidia.com/gpu.shared")
    assert feature_labels(a100s("all-disabled"), MigStrategy.NONE, FACTS, renamed) == {**COMMON, **WHOLE, **shared}


def test_shared_slices_say_so_under_either_strategy() -> None:
    single = feature_labels(a100s("all-1g.5gb"), MigStrategy.SINGLE, FACTS, rules("nvidia.com/gpu", 4))
    said = {"product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "replicas": "4", "sharing-strategy": "time-slicing"}
    expected = {f"nvidia.com/gpu.{part}": value for part, value in {**SMALL, **said}.items()}
    assert single == {**COMMON, **expected, "nvidia.com/mig.strategy": "single"}
    mixed = feature_labels(a100s("all-balanced"), MigStrategy.MIXED, FACTS, rules("nvidia.com/mig-1g.5gb", 4))
    assert {f"nvidia.com/mig-1g.5gb.{part}": value for part, value in said.items()}.items() <= mixed.items()
    assert mixed["nvidia.com/mig-2g.10gb.sharing-strategy"] == "none"
    assert mixed["nvidia.com/gpu.replicas"] == "0"


def test_gpus_that_are_all_cut_are_not_shared() -> None:
    labels = feature_labels(a100s("all-balanced"), MigStrategy.MIXED, FACTS, rules("nvidia.com/gpu", 10))
    assert (labels["nvidia.com/gpu.replicas"], labels["nvidia.com/gpu.sharing-strategy"]) == ("0", "none")
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"


WITH_MPS = MachineSharing(frozenset(Sharing), mps_clients=48)


def test_gpus_that_are_shared_by_mps_say_so_where_the_machine_has_it() -> None:
    sharing = ReplicaPolicy((SharedResource("nvidia.com/gpu", 10, "nvidia.com/gpu", sharing=Sharing.MPS),))
    state = a100s("all-disabled")
    labels = feature_labels(replace(state, sharing=WITH_MPS), MigStrategy.NONE, FACTS, sharing)
    assert labels["nvidia.com/mps.capable"] == "true"
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-SHARED"
    assert (labels["nvidia.com/gpu.replicas"], labels["nvidia.com/gpu.sharing-strategy"]) == ("10", "mps")
    assert feature_labels(state, MigStrategy.NONE, FACTS, sharing) == {**COMMON, **WHOLE}, "not claimed where it is not"


def test_a_node_of_virtual_gpus_has_the_label_of_awss_plugin_beside_what_is_true_of_its_gpus() -> None:
    state, virtual = a100s("all-disabled"), ReplicaPolicy(virtual=10)
    labels = feature_labels(replace(state, sharing=WITH_MPS), MigStrategy.NONE, FACTS, virtual)
    said = {"nvidia.com/mps.capable": "true", "k8s.amazonaws.com/accelerator": "vgpu"}
    assert labels == {**COMMON, **WHOLE, **said}
    assert feature_labels(state, MigStrategy.NONE, FACTS, virtual) == {**COMMON, **WHOLE}
    others = {"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"}
    assert "k8s.amazonaws.com/accelerator" not in changed_labels(others, {**COMMON, **WHOLE}, 1.0)
    no_more = changed_labels({**COMMON, **WHOLE, **said}, {**COMMON, **WHOLE}, 1.0)
    assert (no_more["nvidia.com/mps.capable"], no_more["k8s.amazonaws.com/accelerator"]) == ("false", None)
    assert changed_labels({**COMMON, **WHOLE, **said}, {}, 1.0)["k8s.amazonaws.com/accelerator"] is None
    by_hand = {**COMMON, **WHOLE, "k8s.amazonaws.com/accelerator": "vgpu"}
    assert "k8s.amazonaws.com/accelerator" not in changed_labels(by_hand, {**COMMON, **WHOLE}, 1.0)


def test_media_attributes_are_written_with_a_dot() -> None:
    labels = feature_labels(a100s("all-1g.5gb.me"), MigStrategy.MIXED, FACTS)
    assert labels["nvidia.com/mig-1g.5gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me"
    assert labels["nvidia.com/mig-1g.5gb.me.count"] == "2"


def test_a_machine_without_mig_and_one_without_a_gpu() -> None:
    labels = feature_labels(node(uncuttable_gpu()), MigStrategy.MIXED, HostFacts())
    assert labels["nvidia.com/mig.capable"] == "false"
    assert (labels["nvidia.com/gpu.machine"], labels["nvidia.com/gpu.mode"]) == ("unknown", "unknown")
    assert feature_labels(NodeState(()), MigStrategy.MIXED, FACTS) == {}
    lost = replace(uncuttable_gpu(), lost=True)
    assert feature_labels(NodeState((lost,)), MigStrategy.MIXED, FACTS) == {}


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((12, 0), "blackwell"),
        ((42, 0), "undefined"),
    ],
)
def test_families(capability: tuple[int, int], family: str) -> None:
    state = NodeState((replace(uncuttable_gpu(), compute_capability=capability),))
    assert feature_labels(state, MigStrategy.NONE, FACTS)["nvidia.com/gpu.family"] == family


@given(node_views(), node_views(), st.sampled_from(MigStrategy), st.sampled_from(MigStrategy))
def test_the_labels_of_one_state_become_those_of_another_and_no_other_label_is_touched(
    before: NodeView, after: NodeView, one: MigStrategy, other: MigStrategy
) -> None:
    foreign = {
        "nvidia.com/mig.config": "x",
        "nvidia.com/gpu.deploy.dcgm": "true",
        "nvidia.com/gpu.present": "true",
        "a": "b",
    }
    present = {**foreign, **feature_labels(before.node, one, FACTS), "nvidia.com/gfd.timestamp": "1"}
    wanted = feature_labels(after.node, other, FACTS)
    changes = changed_labels(present, wanted, 7.9)
    result = {key: value for key, value in {**present, **changes}.items() if value is not None}
    stamp = result.pop("nvidia.com/gfd.timestamp", None)
    assert result == {**foreign, **wanted}
    assert (stamp is not None) == bool(wanted)
    assert all(is_feature_label(key) for key in wanted)
    assert not any(is_feature_label(key) for key in foreign)
    again = changed_labels({**result, **({"nvidia.com/gfd.timestamp": stamp} if stamp else {})}, wanted, 99.0)
    assert again == {}


def test_host_facts_are_read_where_the_kernel_has_them(tmp_path: Path) -> None:
    device = tmp_path / "bus" / "pci" / "devices" / "0000:10:1c.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200\n")
    (tmp_path / "class" / "dmi" / "id").mkdir(parents=True)
    (tmp_path / "class" / "dmi" / "id" / "product_name").write_text("p4d.24xlarge\n")
    facts = read_host_facts(["00000000:10:1C.0", "00000000:20:1C.0"], sys=tmp_path)
    assert facts == HostFacts("p4d.24xlarge", {"00000000:10:1C.0": "0x030200"})
    assert read_host_facts(["00000000:10:1C.0"], sys=tmp_path / "nowhere") == HostFacts()


def test_the_reference_page_has_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "feature-labels.md").read_text()
    said = {
        f"nvidia.com/{key}" for row in page.splitlines() for key in re.findall(r"`([a-z.-]+)`", row.partition(" | ")[0])
    }
    written = {key for strategy in MigStrategy for key in feature_labels(a100s("all-1g.5gb"), strategy, FACTS)}
    whole = {key for key in written if "/mig-" not in key}
    assert whole | {"nvidia.com/gfd.timestamp"} == {key for key in said if is_feature_label(key)}


@pytest.mark.parametrize("strategy", [MigStrategy.SINGLE, MigStrategy.MIXED])
@pytest.mark.parametrize("name", ["1g.24gb", "1g.24gb+gfx", "2g.48gb-me"])
def test_a_long_product_name_loses_its_end_and_the_profile_nothing(strategy: MigStrategy, name: str) -> None:
    model = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    empty = gpu("RTX-PRO-6000-96GB", 0)
    layout = f"all-{name.replace('+', '.')}"
    pieces = (replace(each, name=model) for each in cut(view_of(empty), layout))
    labels = feature_labels(node(*pieces), strategy, FACTS)
    profile = name.replace("+", ".")
    key = "nvidia.com/gpu" if strategy is MigStrategy.SINGLE else f"nvidia.com/mig-{profile}"
    product = labels[f"{key}.product"]
    assert product.endswith(f"-MIG-{profile}")
    assert model.replace(" ", "-").startswith(product.removesuffix(f"-MIG-{profile}"))
    assert len(product) <= 63
