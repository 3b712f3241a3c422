"""What the lists of nodes and GPUs show of a cluster in a state that nobody would wish for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kubernetes.fleet.clusters import a100s, claim, cluster, filled, node, published, t4s
from tranche.core.quantity import GIB
from tranche.core.request import parse_request
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.fleet.explanation import device_text, held_memory
from tranche.kubernetes.fleet.objects import decode_fleet_claim
from tranche.kubernetes.fleet.overview import COUNT_LABEL, summaries

SMALL = parse_request(gpu_memory="4Gi")


@pytest.mark.parametrize(("mode", "shown"), [("off", "off"), ("Dynamic", "'Dynamic' (unknown)")])
def test_a_node_with_a_word_on_its_gpus_is_shown_also_while_it_offers_none(mode: str, shown: str) -> None:
    (found,) = summaries(cluster([node("p4d", mode=mode), node("plain")], []))
    assert (found.node.name, found.node.mode_text, found.models) == ("p4d", shown, ())


@pytest.mark.parametrize("resource", ["k8s.amazonaws.com/vgpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
def test_a_node_is_shown_by_whatever_resource_its_device_plugin_offers(resource: str) -> None:
    raw = node("g4dn")
    raw["status"]["allocatable"] = {"cpu": "8", resource: "10", "example.com/gpu": "2"}
    (found,) = summaries(cluster([raw, node("plain")], []))
    assert found.models == (f"{resource}: 10",)


def test_a_node_that_shows_only_what_claims_have_still_has_its_other_gpus() -> None:
    slices = published("p4d", a100s(2))
    nodes = [node("p4d", mode="off", labels={COUNT_LABEL: "8"})]
    (found,) = summaries(cluster(nodes, slices))
    assert found.models == ("2 of 8 × NVIDIA A100-SXM4-40GB",)
    (whole,) = summaries(cluster([node("p4d", labels={COUNT_LABEL: "2"})], slices))
    assert whole.models == ("2 × NVIDIA A100-SXM4-40GB",)


def test_every_pod_of_a_claim_is_named() -> None:
    (held,) = filled([node("t4", mode="shared")], published("t4", t4s(), NodeMode.SHARED), {"a": SMALL}, {}).claims
    assert held.holder == "pod team-a/a"
    assert replace(held, pods=("a", "b")).holder == "pods team-a/a, team-a/b"
    assert replace(held, pods=tuple("abcde")).holder == "pods team-a/a, team-a/b, team-a/c and 2 more"


@pytest.mark.parametrize("amount", ["-1Gi", "10000000000000"])
def test_a_claim_of_an_impossible_part_has_no_amount(amount: str) -> None:
    slices = published("t4", t4s(), NodeMode.SHARED)
    nodes = [node("t4", mode="shared")]
    (device,) = [each for each in cluster(nodes, slices).pools["t4"].devices if each.shared]
    raw = claim("evil", SMALL, slices, [device])
    raw["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["memory"] = amount
    (found,) = summaries(cluster(nodes, slices, [raw]))
    (held,) = found.gpus[0].held
    assert held.memory is None
    assert held_memory(held) == "an impossible part"
    assert device_text(held).startswith("an impossible part of GPU 0, shared by ")
    assert 0 <= found.largest_free < 15 * GIB
    assert decode_fleet_claim(raw).given[0].memory is not None, "as the claim says it, in the document"
