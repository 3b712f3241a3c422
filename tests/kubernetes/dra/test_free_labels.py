"""What a node says that claims can have of it."""

from __future__ import annotations

from dataclasses import replace

from tests.kubernetes.dra.test_pool import claimed, with_means
from tests.strategies import gpu_on, uncuttable_gpu, view_of
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu
from tranche.core.board import board_by_key
from tranche.core.grid import Placement
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import FREE_GPUS_LABEL, LARGEST_MEMORY_LABEL, LARGEST_SLICE_LABEL
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import TaintFacts, reasons_against
from tranche.kubernetes.dra.pool import free_labels

A100 = board_by_key("A100-40GB")


def labels(view: NodeView, mode: NodeMode = NodeMode.MIXED) -> tuple[str | None, str | None, str | None]:
    devices = devices_of(view.node)
    found = free_labels(devices, view, reasons_against(devices, view, TaintFacts(mode)))
    return found[LARGEST_SLICE_LABEL], found[LARGEST_MEMORY_LABEL], found[FREE_GPUS_LABEL]


def a100s() -> NodeView:
    assert A100 is not None
    return with_means(view_of(gpu_on(A100, 0), gpu_on(A100, 1)))


def test_an_empty_node_has_all_of_a_gpu() -> None:
    assert labels(a100s()) == ("7g.40gb", "40960", "2")
    assert labels(with_means(view_of(uncuttable_gpu()))) == (None, str(15360 - 446), "1")


def test_what_claims_have_is_not_free() -> None:
    view = a100s()
    one, other = (gpu.uuid for gpu in view.node)
    taken = claimed(view, WholeGpu(one), Slice(other, parse_profile("1g.5gb"), Placement(0, 1)))
    assert labels(taken) == ("3g.20gb", "20096", "0")


def test_what_is_left_of_a_shared_gpu_counts() -> None:
    gpu = uncuttable_gpu()
    part = FractionalShare(WholeGpu(gpu.uuid), 10 << 30, Sharing.MPS)
    held = Allocation("a", Request(WholeGpus(1)), (part,), Phase.ACTIVE, 0.0, keeper=ClaimKeeper("n", "c", "u"))
    view = replace(with_means(view_of(gpu)), allocations=(held,))
    assert labels(view) == (None, str(15360 - 446 - 80 - 10 * 1024), "0")
    full = part._replace(memory=(15360 - 446 - 80 - 100) << 20)
    assert labels(replace(view, allocations=(held._replace(grants=(full,)),))) == (None, "0", "0")


def test_a_node_that_offers_claims_nothing_has_nothing() -> None:
    assert labels(a100s(), NodeMode.OFF) == (None, "0", "0")
