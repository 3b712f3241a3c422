"""Pods that are deleted by force on a node that is full: the scheduler gives away what they have before their containers have
ended, and their successors wait for that.

TRANCHE_FORCED_DELETES says how many, beside as many that are deleted in order: about two seconds for each pair.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

import pytest
from cluster.claims import claim_template
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.workloads import pods_in

from tests.cluster.test_claims_on_nodes import claiming, claims_on, gone, wait_for_phases

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(4 * 3600)]

DELETES = int(os.environ.get("TRANCHE_FORCED_DELETES", "4"))
GPUS = 8
AT_ONCE = min(DELETES, GPUS)
WAYS = {"by force": ("--force", "--grace-period=0"), "in order": ()}


@pytest.mark.long
def test_a_successor_of_a_pod_that_was_deleted_by_force_starts_when_the_gpu_is_free(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    with claims_on(cluster, p4d):
        cluster.apply(claim_template("whole", namespace, device_class="whole.gpu.tranche.dev"))
        names = [f"p{number}" for number in range(GPUS)]
        cluster.apply(*(claiming(name, namespace, p4d, "whole") for name in names))
        wait_for_phases(cluster, namespace, Running=GPUS)
        made = GPUS
        while len(seconds["by force"]) < DELETES:
            for way, options in WAYS.items():
                successors = {f"p{made + number}" for number in range(AT_ONCE)}
                made += AT_ONCE
                cluster.apply(*(claiming(name, namespace, p4d, "whole") for name in sorted(successors)))
                old, names = names[:AT_ONCE], names[AT_ONCE:] + sorted(successors)
                cluster.kubectl("delete", "pod", "--namespace", namespace, "--wait=false", *options, *old)
                began = time.monotonic()
                waiting = set(successors)
                while waiting:
                    for item in pods_in(cluster, namespace):
                        name = item["metadata"]["name"]
                        if name in waiting and item["status"]["phase"] == "Running":
                            waiting.remove(name)
                            seconds[way].append(time.monotonic() - began)
                    assert time.monotonic() - began < 300, f"{waiting} do not start"
                    time.sleep(0.2)
        refused = cluster.kubectl(
            "get", "events", "--namespace", namespace, "--field-selector=reason=FailedPrepareDynamicResources"
        )
        figures = "; ".join(
            f"{way}: {len(found)} deletes, the successor runs after {median(found):.1f} s (median), {max(found):.1f} s at most"
            for way, found in seconds.items()
        )
        print(figures)
        record_property("figure", figures)
        assert "Failed" not in refused, refused
        gone(cluster, p4d, namespace)
