"""One release of the chart from annotations to slices on the fly, and manifests that know nothing of claims beside them."""

from __future__ import annotations

from typing import Any

import pytest
from cluster.chart_values import simulated_machines
from cluster.claims import claims_in, devices_published, give_by_claims
from cluster.cluster import Cluster
from cluster.helm_release import HelmRelease
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, log, phases, pod, pods_in
from release.image import MadeImage

pytestmark = pytest.mark.cluster

LOOK = f"nvidia-smi -L; echo end; {FOREVER}"


def asking(name: str, namespace: str, **annotations: str) -> dict[str, Any]:
    made = pod(name, namespace, script=LOOK)
    made["metadata"]["annotations"] = annotations
    return made


def test_annotated_pods_and_old_manifests_get_slices_side_by_side(
    cluster: Cluster, p4d: Node, namespace: str, agent_image: MadeImage
) -> None:
    agents = f"{namespace}-agents"
    cluster.kubectl("create", "namespace", agents)
    by_name = {"key": "kubernetes.io/hostname", "operator": "In", "values": [p4d.name]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [by_name]}]}
    values = {
        **simulated_machines(cluster.folder),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "migStrategy": "mixed",
        "dra": {"enabled": True},
        "controller": {"enabled": True, "replicas": 1},
    }
    release = HelmRelease(cluster, "whole", agents, agent_image, values)
    cluster.kubectl("label", "namespace", namespace, "tranche.dev/inject=enabled")
    cluster.kubectl("label", "node", p4d.name, "tranche.dev/mode=dynamic")
    try:
        notes = release.install()
        assert "kubectl label namespace NAMESPACE tranche.dev/inject=enabled" in notes
        controller = f"deployment/{release.objects}-controller"
        cluster.kubectl("rollout", "status", controller, f"--namespace={agents}", "--timeout=120s")
        wait_for("the node's devices are shown", lambda: devices_published(cluster, p4d))
        old = pod("old", namespace, script=LOOK, node=p4d.name, limits={"nvidia.com/mig-2g.10gb": 1})
        whole = pod("whole", namespace, script=LOOK, node=p4d.name, limits={"nvidia.com/gpu": 1})
        cluster.apply(
            asking("small", namespace, **{"tranche.dev/gpu-memory": "4Gi"}),
            asking("half", namespace, **{"tranche.dev/gpu": "0.5", "tranche.dev/isolation": "hard"}),
            asking("kai", namespace, **{"gpu-memory": "9000"}),
            old,
            whole,
        )

        def explain() -> str:
            events = cluster.kubectl("get", "events", "--namespace", namespace, "--field-selector=type=Warning")
            return cluster.kubectl("get", "pods,resourceclaims", "--namespace", namespace) + events[-3000:]

        wait_for("all run", lambda: phases(cluster, namespace) == {"Running": 5}, timeout=180, explain=explain)

        def seen(name: str) -> str:
            def text() -> str:
                found = log(cluster, namespace, name)
                return found if "end" in found else ""

            return wait_for(f"{name} has looked", text)

        for name, profile in (("small", "1g.5gb"), ("half", "3g.20gb"), ("kai", "1g.10gb"), ("old", "2g.10gb")):
            assert f"MIG {profile}" in seen(name), seen(name)
        assert "MIG" not in seen("whole")
        assert len(claims_in(cluster, namespace)) == 5
    finally:
        cluster.api.delete_all(f"/api/v1/namespaces/{namespace}/pods")
        wait_for("the pods are gone", lambda: not pods_in(cluster, namespace))
        release.uninstall()
        give_by_claims(cluster, p4d, None)
        cluster.kubectl("delete", "namespace", agents, "--wait=false")
        p4d.renew_machine()
