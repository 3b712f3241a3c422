"""The 56 jobs of deploy/examples, scaled: on eight whole GPUs and in 56 slices."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from cluster.agents import agent_on
from cluster.batch_jobs import Batch, example, run_batch
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, wait_for_slices, wait_for_state

from tests.cluster.test_claims_on_nodes import claims_on, gone
from tranche.demo.schedule import SLICE_SECONDS, WHOLE_GPU_SECONDS

pytestmark = pytest.mark.cluster

SCALE = 0.02
MEMBERS, GPUS = 56, 8


@pytest.mark.long
def test_56_members_run_in_slices_of_their_own_and_on_whole_gpus_by_turns(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    def batch(name: str) -> Batch:
        done = run_batch(cluster, namespace, example(name, scale=SCALE), timeout=300)
        assert sorted(member.index for member in done.members) == list(range(MEMBERS)), "each member succeeds, once"
        assert done.shared == ()
        return done

    try:
        with agent_on(cluster, p4d, "--mig-strategy=mixed"):
            label(cluster, p4d, "all-disabled")
            wait_for_slices(cluster, p4d, gpu=GPUS)
            whole = batch("whole-gpus")
            label(cluster, p4d, "all-1g.5gb")
            wait_for_slices(cluster, p4d, mig_1g_5gb=MEMBERS)
            sliced = batch("slices")
            label(cluster, p4d, "all-disabled")
            wait_for_state(cluster, p4d, "success")
    finally:
        label(cluster, p4d, None)

    assert (len(whole.devices), len(sliced.devices)) == (GPUS, MEMBERS)
    assert all(device.startswith("GPU-") for device in whole.devices)
    assert all(device.startswith("MIG-") for device in sliced.devices)
    # No job can take less than its time, nor a GPU serve two at once.
    assert whole.seconds >= math.ceil(MEMBERS / GPUS) * WHOLE_GPU_SECONDS * SCALE
    assert sliced.seconds >= SLICE_SECONDS * SCALE
    record_property(
        "figure",
        f"56 jobs of {SCALE:g} of their length: {whole.seconds:.1f} s on 8 GPUs, {sliced.seconds:.1f} s in slices"
        f" ({whole.seconds / sliced.seconds:.2f} times as fast)",
    )


@pytest.mark.long
def test_the_manifest_for_slices_runs_as_it_is_on_a_node_that_cuts_its_gpus_on_the_fly(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    with claims_on(cluster, p4d):
        done = run_batch(cluster, namespace, example("slices", scale=SCALE), timeout=300)
        assert sorted(member.index for member in done.members) == list(range(MEMBERS)), "each member succeeds, once"
        assert p4d.run("nvidia-smi", "-L").count("MIG 1g.5gb") == MEMBERS, "all ran at once, each in a slice"
        gone(cluster, p4d, namespace)
