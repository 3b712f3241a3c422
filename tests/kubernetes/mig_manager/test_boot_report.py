"""What the machine did at boot, as the node's agent tells it: a cut that failed, and partitions that the system made."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kubernetes.mig_manager.mig_node import NODE, ManagedNode, on_node
from tests.kubernetes.waiting import until
from tests.strategies import gpu_on, instance_of, view_of
from tranche.boot.cut import record_outcome
from tranche.core.board import board_by_key
from tranche.core.errors import ProfileUnknown, TrancheError
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.mig_manager.state import partitioned_by_system

A100 = "A100-40GB"
BOTTLEROCKET = "Bottlerocket OS 1.54.0 (aws-k8s-1.34-nvidia)"
LINUX = "Amazon Linux 2023.9.20260105"
FAILURE = ProfileUnknown("GPU 0 has no profile with the number 99", hint="its numbers are 19 (1g.5gb)")


def booted(node: ManagedNode, boot: str, error: TrancheError | None) -> None:
    """Leave behind what `tranche boot` does."""
    record_outcome(node.host.places.ledger, time=time.time(), boot_id=boot, asked="99", error=error)


def test_a_cut_at_boot_that_failed_is_in_the_condition_until_one_succeeds(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        booted(node, "boot-0", FAILURE)
        async with node.managed():
            await until(lambda: node.condition is not None and node.condition[1] == FAILURE.reason)
            assert node.condition is not None
            status, _, message = node.condition
            assert (status, node.shown) == ("False", (None, None))
            assert "at boot: GPU 0 has no profile with the number 99 (its numbers are" in message
            assert node.events == {("Warning", FAILURE.reason)}
            booted(node, "boot-0", None)
            node.annotate({"something": "new"})
            await until(lambda: node.condition is not None and node.condition[1] == "NoLayoutRequested")

    on_node(tmp_path, test, A100)


def test_a_label_counts_more_than_the_boot_and_another_boot_does_not_count(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        booted(node, "boot-0", FAILURE)
        booted(node, "an earlier one", FAILURE)
        node.label(mig_config="all-balanced")
        async with node.managed():
            await node.shows("success")
            node.restarts = 1
            node.label(mig_config=None)
            await until(lambda: node.condition is not None and node.condition[1] == "NoLayoutRequested")

    on_node(tmp_path, test, A100)


@pytest.mark.parametrize(
    ("system", "ours", "found"),
    [(BOTTLEROCKET, False, True), (BOTTLEROCKET, True, False), (LINUX, False, False), ("", False, False)],
)
def test_foreign_instances_on_bottlerocket_are_bottlerockets(system: str, ours: bool, found: bool) -> None:
    board = board_by_key(A100)
    assert board is not None
    profile = board.profile(parse_profile("1g.5gb"))
    assert profile is not None
    gpu = gpu_on(board, instances=[instance_of(profile, Placement(0, 1))])
    view = view_of(gpu, owned=[gpu.key(gpu.instances[0])] if ours else [])
    named = partitioned_by_system(KubeNode("n", os_image=system), view)
    assert (named is not None) == found
    assert partitioned_by_system(KubeNode("n", os_image=system), view_of(replace(gpu, instances=()))) is None


def test_bottlerockets_partitions_are_left_alone(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        driver, half = node.host.driver, parse_profile("3g.20gb")
        (gpu,) = driver.observe()
        driver.set_mig_mode(gpu.uuid, True)
        driver.reset_gpu(gpu.uuid)
        for start in (0, 4):
            instance = driver.create_gpu_instance(gpu.uuid, half, Placement(start, 4))
            driver.create_compute_instance(gpu.uuid, instance, half)
        status = {"nodeInfo": {"osImage": BOTTLEROCKET}}
        node.server.put(NODE, {**node.server.objects[NODE], "status": status})
        node.label(mig_config="all-1g.5gb")
        async with node.managed():
            await node.shows("failed", "ManagerConflict")
            assert node.condition is not None
            assert BOTTLEROCKET in node.condition[2]
            assert node.slices() == ["3g.20gb", "3g.20gb"]

    on_node(tmp_path, test, A100)
