"""A real API server takes the DeviceClasses of the chart, and holds an agent to the slices of its own node."""

from __future__ import annotations

import json
import subprocess

import pytest
from cluster.agents import ACCOUNT, NAMESPACE, install_rights, remove_device_classes, write_rights
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from release.chart import render

pytestmark = pytest.mark.cluster

DYNAMIC = {"namespace": {"create": True}, "dra": {"enabled": True}}


def test_the_api_server_keeps_every_class_with_its_expression_and_its_resource(cluster: Cluster) -> None:
    classes = [item for item in render(DYNAMIC) if item["kind"] == "DeviceClass"]
    try:
        cluster.apply(*classes)
        kept = {
            item["metadata"]["name"]: item["spec"]
            for item in cluster.api.get("/apis/resource.k8s.io/v1/deviceclasses")["items"]
        }
        assert kept == {item["metadata"]["name"]: item["spec"] for item in classes}
    finally:
        remove_device_classes(cluster)


def test_an_agent_writes_slices_of_its_own_node_and_driver_only(cluster: Cluster, p4d: Node) -> None:
    write_rights(cluster, [item for item in render(DYNAMIC) if item["kind"] != "DeviceClass"])
    try:
        account = cluster.account_kubeconfig(NAMESPACE, ACCOUNT, p4d.name)

        def refusal(node: str, driver: str) -> str:
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            made = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{node}-{driver}"},
                "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": []},
            }
            command = [cluster.binaries["kubectl"], f"--kubeconfig={account}", "create", "--dry-run=server", "-f-"]
            done = subprocess.run(command, input=json.dumps(made), capture_output=True, text=True, check=False)
            return done.stderr

        # The API server enforces a policy a moment after it has taken it.
        said = wait_for("another node's slices are refused", lambda: refusal("other", "gpu.tranche.dev"))
        assert "this agent runs on node p4d" in said
        assert refusal(p4d.name, "gpu.tranche.dev") == ""
        assert "may not change ResourceSlices of the driver gpu.nvidia.com" in refusal(p4d.name, "gpu.nvidia.com")
    finally:
        install_rights(cluster)
