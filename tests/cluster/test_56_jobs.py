"""The 56 jobs of deploy/examples, shortened: on eight whole GPUs and in 56 slices."""

from __future__ import annotations

import pytest
from cluster.agents import agent_on
from cluster.batch_jobs import Batch, example, run_batch
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, wait_for_slices, wait_for_state

from tests.cluster.test_claims_on_nodes import claims_on, gone

pytestmark = pytest.mark.cluster

MEMBERS, GPUS = 56, 8
# In seconds. On slow cores the last of 56 members starts long after the first, which must still run then, or it leaves its slice
# to another.
EACH_IN_A_SLICE = 60.0
EACH_ON_A_GPU = 0.7


@pytest.mark.long
def test_56_members_run_in_slices_of_their_own_and_on_whole_gpus_by_turns(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    def batch(name: str, seconds: float) -> Batch:
        done = run_batch(cluster, namespace, example(name, seconds=seconds), timeout=300)
        assert sorted(member.index for member in done.members) == list(range(MEMBERS)), "each member succeeds, once"
        assert done.shared == ()
        return done

    try:
        with agent_on(cluster, p4d, "--mig-strategy=mixed"):
            label(cluster, p4d, "all-disabled")
            wait_for_slices(cluster, p4d, gpu=GPUS)
            whole = batch("whole-gpus", EACH_ON_A_GPU)
            label(cluster, p4d, "all-1g.5gb")
            wait_for_slices(cluster, p4d, mig_1g_5gb=MEMBERS)
            sliced = batch("slices", EACH_IN_A_SLICE)
            label(cluster, p4d, "all-disabled")
            wait_for_state(cluster, p4d, "success")
    finally:
        label(cluster, p4d, None)

    assert (len(whole.devices), len(sliced.devices)) == (GPUS, MEMBERS)
    assert all(device.startswith("GPU-") for device in whole.devices)
    assert all(device.startswith("MIG-") for device in sliced.devices)


@pytest.mark.long
def test_the_manifest_for_slices_runs_as_it_is_on_a_node_that_cuts_its_gpus_on_the_fly(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    with claims_on(cluster, p4d):
        done = run_batch(cluster, namespace, example("slices", seconds=EACH_IN_A_SLICE), timeout=300)
        assert sorted(member.index for member in done.members) == list(range(MEMBERS)), "each member succeeds, once"
        assert p4d.run("nvidia-smi", "-L").count("MIG 1g.5gb") == MEMBERS, "all ran at once, each in a slice"
        gone(cluster, p4d, namespace)
