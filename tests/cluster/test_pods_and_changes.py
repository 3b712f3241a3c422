"""Pods come and go while the layout changes again and again: no pod ever loses its slice."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from cluster.agents import agent_on
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, wait_for_slices, wait_for_state
from cluster.waiting import wait_for
from cluster.workloads import SHOW_DEVICES, phases, pod, pods_in

pytestmark = pytest.mark.cluster

WAVES = 12
PODS_IN_A_WAVE = 6
LAYOUTS = ("all-balanced", "all-1g.5gb", "all-2g.10gb")
RESOURCES = ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb")
# The slice must be there when the container begins and when it ends: the pod fails otherwise.
HOLD = f'sees() {{ nvidia-smi -L | grep -q "$({SHOW_DEVICES})"; }}; sees && sleep %.1f && sees'


@pytest.mark.long
def test_no_pod_loses_its_slice_however_often_the_layout_changes(cluster: Cluster, p4d: Node, namespace: str) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # pytest shows it with a failure
    rng = random.Random(seed)
    try:
        with agent_on(cluster, p4d, "--mig-strategy=mixed"):
            label(cluster, p4d, LAYOUTS[0])
            wait_for_slices(cluster, p4d, mig_1g_5gb=16, mig_2g_10gb=8, mig_3g_20gb=8)
            for wave in range(WAVES):
                cluster.apply(
                    *(
                        pod(
                            f"pod-{wave}-{number}",
                            namespace,
                            script=HOLD % rng.uniform(0.5, 3),
                            limits={rng.choice(RESOURCES): 1},
                        )
                        for number in range(PODS_IN_A_WAVE)
                    )
                )
                time.sleep(rng.uniform(0, 1.5))
                label(cluster, p4d, rng.choice(LAYOUTS))
                time.sleep(rng.uniform(0, 1.5))
            # With both kinds of slices at hand, whatever still waits can run.
            label(cluster, p4d, "all-balanced")
            wait_for(
                "every pod has ended",
                lambda: not {"Pending", "Running"} & set(phases(cluster, namespace)),
                timeout=300,
                explain=lambda: str(phases(cluster, namespace)),
            )
            wait_for_state(cluster, p4d, "success")
            wait_for_slices(cluster, p4d, mig_1g_5gb=16, mig_2g_10gb=8, mig_3g_20gb=8)
        ended = Counter(_end(each["status"]) for each in pods_in(cluster, namespace))
        print(ended)
        assert ended["Succeeded"] > 0
        # A pod that the scheduler placed on a slice that was just withdrawn is turned away before it runs: that is no loss.
        turned_away = {"UnexpectedAdmissionError", *(f"OutOf{resource}" for resource in RESOURCES)}
        assert set(ended) <= {"Succeeded", *turned_away}, ended
    finally:
        label(cluster, p4d, None)
        p4d.renew_machine()


def _end(status: dict[str, str]) -> str:
    return status["phase"] if status["phase"] == "Succeeded" else status.get("reason", status["phase"])
