"""Pods that compete: made, deleted with and without force, and read back from API server and kubelet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.workloads import FOREVER, pod

from tests.cluster.competition.witness import MARK

FINISHED = ("Succeeded", "Failed")
SCRIPTS = {
    "short": ("sleep 1.5", "Never"),
    "long": (FOREVER, "Never"),
    "restarting": ("sleep 3; exit 1", "Always"),
    "deaf": ("trap '' TERM; while :; do sleep 1; done", "Always"),
}
"""What a pod's container runs, by kind, and its restart policy."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod as the API server has it. `reason` is why it failed; `node` is empty before it is bound."""

    name: str
    uid: str
    phase: str
    reason: str
    resource: str
    node: str
    terminating: bool

    @property
    def finished(self) -> bool:
        """Whether it will not run again."""
        return self.phase in FINISHED

    @property
    def counts(self) -> bool:
        """Whether the scheduler counts what it asks for as taken."""
        return bool(self.node) and not self.finished


@dataclass(frozen=True, slots=True)
class Pods:
    """The competitors of one namespace."""

    cluster: Cluster
    node: Node
    namespace: str

    def create(self, name: str, mark: str, kind: str, resource: str) -> None:
        """A pod of that kind, which asks for one device."""
        script, restart = SCRIPTS[kind]
        made = pod(name, self.namespace, script=script, node=self.node.name, limits={resource: 1})
        made["spec"]["restartPolicy"] = restart
        made["spec"]["containers"][0]["env"] = [{"name": MARK, "value": mark}]
        self.cluster.api.request("POST", self._path(), made)

    def delete(self, name: str, *, force: bool) -> None:
        """Delete it; with force it is gone from the API server before its container has ended."""
        options = {"gracePeriodSeconds": 0 if force else 1}
        try:
            self.cluster.api.request("DELETE", self._path(name), options)
        except ClusterError as error:
            if " 404 " not in str(error):
                raise

    def seen(self) -> list[PodSeen]:
        """Every pod now."""
        return [_seen(item) for item in self.cluster.api.get(self._path())["items"]]

    def sweep(self) -> Counter[str]:
        """Delete those that have finished; how many, by how they ended."""
        done = [each for each in self.seen() if each.finished and not each.terminating]
        for each in done:
            self.delete(each.name, force=False)
        return Counter(each.reason if each.phase == "Failed" and each.reason else each.phase for each in done)

    def given(self) -> dict[str, dict[str, str]]:
        """The devices that the kubelet has written down for each pod, by its uid; for each the resource as which it was given."""
        file = self.node.paths.device_plugins / "kubelet_internal_checkpoint"
        entries = json.loads(file.read_text())["Data"]["PodDeviceEntries"] or []
        found: dict[str, dict[str, str]] = {}
        for entry in entries:
            devices = (uuid for uuids in entry["DeviceIDs"].values() for uuid in uuids)
            found.setdefault(entry["PodUID"], {}).update(dict.fromkeys(devices, entry["ResourceName"]))
        return found

    def _path(self, name: str = "") -> str:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return f"{path}/{name}" if name else path


def free_by_resource(allocatable: dict[str, int], pods: Sequence[PodSeen]) -> dict[str, int]:
    """What the scheduler may still place on the node, by resource."""
    taken = Counter(each.resource for each in pods if each.counts)
    return {resource: count - taken[resource] for resource, count in allocatable.items()}


def _seen(item: dict[str, Any]) -> PodSeen:
    limits = item["spec"]["containers"][0]["resources"].get("limits", {})
    status = item["status"]
    return PodSeen(
        item["metadata"]["name"],
        item["metadata"]["uid"],
        status.get("phase", "Pending"),
        status.get("reason", ""),
        next(iter(limits), ""),
        item["spec"].get("nodeName", ""),
        "deletionTimestamp" in item["metadata"],
    )
