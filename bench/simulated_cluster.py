"""A cluster that is only thought of: nodes of eight A100 in slices of 1g.5gb, or of several sizes, whose pods come and go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from bench.machine import ProductPath
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, KubeNodeState, SeenNode
from tranche.documents.overview import overview_data

NAMESPACES = ("vision", "speech", "ranking", "search", "ads")
GPUS = 8
_KINDS = 7


class SimulatedCluster:
    """Each slice of each node is idle or held by a pod; `changes` gives other documents of nodes, as their agents would."""

    def __init__(self, nodes: int, seed: int = 11, idle: float = 0.2, *, mixed: bool = False) -> None:
        self._random = Random(seed)
        self._pods = 0
        self._mixed = mixed
        texts = [self._machine() for _ in range(_KINDS if mixed else 1)]
        self.overviews: dict[str, Mapping[str, Any]] = {}
        for number in range(nodes):
            made = json.loads(self._random.choice(texts).replace("GPU-", f"GPU-{number:04}-"))
            given = {each["id"]: each for each in made["allocations"]}
            made["allocations"] = [self._pod(each) for each in made["allocations"]]
            for gpu in made["gpus"]:
                for each in gpu["slices"]:
                    if self._random.random() < idle:
                        given.pop(each["allocationId"])
                        _take_back(each)
            made["allocations"] = [each for each in made["allocations"] if each["id"] in given]
            self.overviews[f"node-{number:04}"] = made

    def _machine(self) -> str:
        """The Overview of a machine that has no room for another of the smallest slices, or if mixed of whatever comes."""
        machine = ProductPath(GPUS)
        while machine.place(self._random.choice((0, 2, 3, 3)) if self._mixed else 0) is not None:
            pass
        return json.dumps(overview_data(machine.view, (), ()))

    def snapshot(self, taken: float) -> ClusterSnapshot:
        return ClusterSnapshot().after([self._seen(name, taken) for name in self.overviews], taken)

    def changes(self, count: int, taken: float) -> list[SeenNode]:
        """So many times a pod comes to some slice or goes; the nodes on which that was."""
        touched = [self._random.choice(list(self.overviews)) for _ in range(count)]
        for name in touched:
            self.overviews[name] = self._changed(self.overviews[name])
        return [self._seen(name, taken) for name in dict.fromkeys(touched)]

    def _seen(self, name: str, taken: float) -> SeenNode:
        number = int(name.removeprefix("node-"))
        standing = KubeNodeState(ready=True, unschedulable=self._mixed and number % 20 == 3, mode="dynamic")
        silent = "its agent does not answer" if self._mixed and number % 20 == 6 else ""
        return SeenNode(name, standing, self.overviews[name], taken, silent)

    def _changed(self, overview: Mapping[str, Any]) -> Mapping[str, Any]:
        """Another document, which shares with the first one what is as it was."""
        place = self._random.randrange(GPUS)
        gpu = overview["gpus"][place]
        number = self._random.randrange(len(gpu["slices"]))
        piece = dict(gpu["slices"][number])
        if piece["state"] == "held":
            allocations = [each for each in overview["allocations"] if each["id"] != piece["allocationId"]]
            _take_back(piece)
        else:
            grant = {"gpuUUID": gpu["uuid"], "mechanism": "mig", "isolation": "hard", "walls": {}}
            grant |= {"profile": piece["profile"], "placement": piece["placement"]}
            pod = self._pod({"id": f"pod-{self._pods}", "grants": [grant], "phase": "active", "command": ""})
            pod["created"] = "2026-01-01T00:00:00.000Z"
            allocations = [*overview["allocations"], pod]
            piece |= {"state": "held", "allocationId": pod["id"], "allocationIds": [pod["id"]]}
        slices = [*gpu["slices"][:number], piece, *gpu["slices"][number + 1 :]]
        gpus = [*overview["gpus"][:place], {**gpu, "slices": slices}, *overview["gpus"][place + 1 :]]
        return {**overview, "gpus": gpus, "allocations": allocations}

    def _pod(self, allocation: Mapping[str, Any]) -> dict[str, Any]:
        self._pods += 1
        space = self._random.choice(NAMESPACES)
        return {**allocation, "keeper": {"kind": "pod", "namespace": space, "name": f"train-{self._pods}"}}


def _take_back(piece: dict[str, Any]) -> None:
    piece |= {"state": "idle", "allocationId": None, "allocationIds": []}
