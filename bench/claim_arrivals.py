"""Pods that come and go on nodes that are API objects alone: the real scheduler places them by a list in one of three orders."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from cluster.client import ApiClient
from cluster.errors import ClusterError, NotFound
from cluster.paper_nodes import SLICES, claim, pod_with_claim

from bench.acceptance import Arrival
from bench.machine import board_of, empty_machine
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import ProfileName
from tranche.core.request import MigSlice, Request
from tranche.kubernetes.api.resource_slices import NodeSlice, decode_slice, encode_slice
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import profile_class
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind, devices_of
from tranche.kubernetes.devices.taints import TaintFacts, reasons_against
from tranche.kubernetes.dra.pool import MOST_DEVICES, encode_device, pool_contents, slice_writes

NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
GPUS = 8
_PATIENCE_SECONDS = 120.0
"""Of thousands of pods on busy cores, one waits longer for the scheduler than all others."""
_TOLD = 250
_SECOND_TRY_SECONDS = 0.4
"""How long a pod that found no room is watched on: the scheduler may not have seen yet what was given back."""


class KeptConnection:
    """The administrator's requests over one connection."""

    def __init__(self, api: ApiClient) -> None:
        address = urlsplit(api.server)
        context = ssl.create_default_context(cafile=str(api.pki.authority))
        context.load_cert_chain(str(api.pki.certificate(api.client)), str(api.pki.key(api.client)))
        assert address.hostname is not None
        self._connection = http.client.HTTPSConnection(address.hostname, address.port, timeout=60, context=context)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One request. NotFound or ClusterError where it is refused."""
        encoded = None if body is None else json.dumps(body)
        self._connection.request(method, path, body=encoded, headers={"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            kind = NotFound if answer.status == 404 else ClusterError
            raise kind(f"{method} {path}: {answer.status} {content[:300]!r}")
        found: dict[str, Any] = json.loads(content)
        return found


Contents = Callable[[str, Sequence[NodeDevice], NodeView, Sequence[NodeSlice]], tuple[NodeSlice, ...]]
"""What a node shows: its name, devices, what it is and has, and what it shows now."""


def by_policy(
    name: str, devices: Sequence[NodeDevice], view: NodeView, shown: Sequence[NodeSlice]
) -> tuple[NodeSlice, ...]:
    """The product."""
    against = reasons_against(devices, view, TaintFacts(NodeMode.DYNAMIC))
    return pool_contents(name, devices, view, against, shown)


def by_name(
    name: str, devices: Sequence[NodeDevice], view: NodeView, shown: Sequence[NodeSlice]
) -> tuple[NodeSlice, ...]:
    """A list that never changes, as other drivers have it: a slice for each GPU, its devices by name, lowest start first."""
    return _listed(name, devices, view, lambda each: each.name)


def at_random(
    name: str, devices: Sequence[NodeDevice], view: NodeView, shown: Sequence[NodeSlice]
) -> tuple[NodeSlice, ...]:
    """A list that never changes, in an order that means nothing."""
    random = Random(name)
    places = {each.name: random.random() for each in devices}
    return _listed(name, devices, view, lambda each: places[each.name])


def _listed(
    name: str, devices: Sequence[NodeDevice], view: NodeView, key: Callable[[NodeDevice], Any]
) -> tuple[NodeSlice, ...]:
    counters = [each for each in by_policy(name, devices, view, ()) if each.counters]
    numbers = sorted({each.number for each in devices})
    listed = []
    for number in numbers:
        here = sorted((each for each in devices if each.number == number), key=key)
        assert len(here) <= MOST_DEVICES
        listed.append(NodeSlice(f"{name}-gpu-{number}", devices=tuple(map(encode_device, here))))
    return (*counters, *listed)


ORDERS: Mapping[str, Contents] = {"our order": by_policy, "listing order": by_name, "random order": at_random}


@dataclass
class ShownNode:
    """A node that shows the slices of GPUs of one board in an order, and what claims have of them.

    As an agent does, it prepares what it is given in MIG mode, and keeps instances that were given back only as free room.
    """

    name: str
    uid: str
    contents: Contents
    connection: KeptConnection
    view: NodeView
    devices: tuple[NodeDevice, ...]
    known: tuple[NodeSlice, ...] = ()
    held: dict[str, Allocation] = field(default_factory=dict)
    writes: int = 0

    def show(self) -> None:
        """Write what differs."""
        view = replace(self.view, allocations=tuple(self.held.values()))
        contents = self.contents(self.name, self.devices, view, self.known)
        writes = slice_writes(contents, self.known, (self.name, self.uid))
        made = {each.name: each for each in self.known}
        for each in writes.create:
            made[each.name] = decode_slice(self.connection.ask("POST", SLICES, encode_slice(each)))
        for each in writes.replace:
            made[each.name] = decode_slice(self.connection.ask("PUT", f"{SLICES}/{each.name}", encode_slice(each)))
        self.writes += writes.count
        self.known = tuple(made.values())

    def given(self, pod: str, device_name: str) -> None:
        """A pod has a device from now on."""
        device = next(each for each in self.devices if each.name == device_name)
        assert isinstance(device.offered, Slice)
        request = Request(MigSlice(device.offered.profile))
        keeper = ClaimKeeper(NAMESPACE, pod, pod)
        self.held[pod] = Allocation(pod, request, (device.offered,), Phase.ACTIVE, 0.0, keeper=keeper)


def shown_node(name: str, uid: str, contents: Contents, connection: KeptConnection, board: str) -> ShownNode:
    """A node with eight GPUs of that board, in MIG mode."""
    view = shown_view(board)
    devices = tuple(each for each in devices_of(view.node) if each.kind is OfferKind.SLICE)
    return ShownNode(name, uid, contents, connection, view, devices)


def shown_view(board: str) -> NodeView:
    """Eight GPUs of that board, in MIG mode, with nobody on them."""
    return empty_machine(board_of(board), GPUS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the arrivals that count: how many came, and how many were accepted. `seconds` is the whole run's, `bound` how many pods
    were bound in it, and `writes` how many ResourceSlices were written after the first.
    """

    offered: int
    accepted: int
    seconds: float
    bound: int
    writes: int


def play(
    connection: KeptConnection, nodes: Mapping[str, ShownNode], profiles: Sequence[ProfileName], path: Sequence[Arrival]
) -> Outcome:
    """Have the pods come and go one after another; who finds no room is lost. The first third does not count."""
    running: list[tuple[float, str, str]] = []
    begun, before = monotonic(), sum(node.writes for node in nodes.values())
    accepted = bound = 0
    first = len(path) // 3
    for number, arrival in enumerate(path):
        if number % _TOLD == 0:
            print(f"{number} of {len(path)} arrivals, after {monotonic() - begun:.0f} s", file=sys.stderr)
        gone: dict[str, list[str]] = {}
        while running and running[0][0] <= arrival.time:
            _, pod, node = heappop(running)
            gone.setdefault(node, []).append(pod)
        for name, pods in gone.items():
            for pod in pods:
                remove(connection, pod)
                del nodes[name].held[pod]
            nodes[name].show()
        name = f"pod-{number}"
        request = {"name": "gpu", "exactly": {"deviceClassName": profile_class(profiles[arrival.shape])}}
        connection.ask("POST", CLAIMS, claim(name, [request]))
        connection.ask("POST", PODS, pod_with_claim(name, name))
        where = placed(connection, name)
        if where:
            allocation = connection.ask("GET", f"{CLAIMS}/{name}")["status"]["allocation"]
            nodes[where].given(name, allocation["devices"]["results"][0]["device"])
            nodes[where].show()
            heappush(running, (arrival.time + arrival.service, name, where))
            bound += 1
            accepted += number >= first
        else:
            remove(connection, name)
    seconds = monotonic() - begun
    for _, pod, node in running:
        remove(connection, pod)
        del nodes[node].held[pod]
    writes = sum(node.writes for node in nodes.values()) - before
    return Outcome(len(path) - first, accepted, seconds, bound, writes)


def placed(connection: KeptConnection, name: str) -> str:
    """The node that a pod is bound to; "" once the scheduler has found none for it."""
    until, last_chance = monotonic() + _PATIENCE_SECONDS, 0.0
    while monotonic() < until:
        found = connection.ask("GET", f"{PODS}/{name}")
        if node := found["spec"].get("nodeName"):
            return str(node)
        refused = any(each.get("reason") == "Unschedulable" for each in found["status"].get("conditions") or ())
        if refused and not last_chance:
            last_chance = monotonic() + _SECOND_TRY_SECONDS
        if last_chance and monotonic() > last_chance:
            return ""
        sleep(0.004)
    raise ClusterError(f"the scheduler has said nothing of {name}")


def remove(connection: KeptConnection, name: str) -> None:
    """Delete a pod and its claim, if somebody has not done so, and wait until the claim is gone."""
    for path in (f"{PODS}/{name}?gracePeriodSeconds=0", f"{CLAIMS}/{name}"):
        with suppress(NotFound):
            connection.ask("DELETE", path)
    until = monotonic() + _PATIENCE_SECONDS
    while monotonic() < until:
        try:
            connection.ask("GET", f"{CLAIMS}/{name}")
        except NotFound:
            return
        sleep(0.004)
    raise ClusterError(f"claim {name} does not go")
