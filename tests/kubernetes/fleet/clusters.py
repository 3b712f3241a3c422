"""Clusters as their API objects: what nodes publish is made by the code that publishes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.strategies import gpu_on, instance_of, uncuttable_gpu
from tranche.core.allocation import NodeView
from tranche.core.board import Board, board_by_key
from tranche.core.grid import placements
from tranche.core.profile import parse_profile
from tranche.core.request import Request
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import GpuState, NodeState
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.spec import claim_spec
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import TaintFacts, kept_places, parse_kept, reasons_against, set_apart
from tranche.kubernetes.dra.pool import pool_contents
from tranche.kubernetes.fleet.device_request import demanded_by
from tranche.kubernetes.fleet.devices import FleetDevice, Pool, decode_fleet_slice, pools_of, shared_cards
from tranche.kubernetes.fleet.fleet import Fleet, served
from tranche.kubernetes.fleet.objects import FleetPod, decode_fleet_claim, decode_fleet_node, decode_fleet_pod

Json = dict[str, Any]
MPS = MachineSharing(frozenset({Sharing.MPS, Sharing.TIME_SLICING}), mps_clients=48)
TIME_SLICING = MachineSharing(frozenset({Sharing.TIME_SLICING}))


def board(key: str) -> Board:
    found = board_by_key(key)
    assert found is not None
    return found


def a100s(count: int) -> tuple[GpuState, ...]:
    return tuple(gpu_on(board("A100-40GB"), index) for index in range(count))


def with_instance(gpu: GpuState, profile: str) -> GpuState:
    """The GPU with that instance at its first place; Tranche did not make it."""
    found = gpu.profile(parse_profile(profile))
    assert found is not None
    return replace(gpu, instances=(instance_of(found, placements(found)[0]),))


def t4s(count: int = 1) -> tuple[GpuState, ...]:
    return tuple(uncuttable_gpu(index) for index in range(count))


def published(
    node: str, gpus: Sequence[GpuState], mode: NodeMode = NodeMode.MIXED, sharing: MachineSharing = MPS, keep: str = ""
) -> list[Json]:
    """The resource slices of a node that keeps those sizes."""
    view = NodeView(NodeState(tuple(gpus), sharing=sharing))
    devices = devices_of(view.node)
    reasons = reasons_against(devices, view, TaintFacts(mode))
    devices, against = set_apart(devices, kept_places(devices, view, parse_kept(keep), reasons), reasons)
    contents = pool_contents(node, devices, view, against, ())
    found = []
    for content in contents:
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(contents)}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
        what = {"devices": list(content.devices)} if content.devices else {"sharedCounters": list(content.counters)}
        found.append({"metadata": {"name": content.name}, "spec": {**spec, **what}})
    return found


def node(name: str, *, ready: bool = True, taints: Sequence[Json] = (), mode: str = "", **more: Any) -> Json:
    labels = {"kubernetes.io/hostname": name, **({"tranche.dev/mode": mode} if mode else {}), **more.pop("labels", {})}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": list(taints), **more},
        "status": {
            "conditions": conditions,
            "allocatable": {"cpu": "8", "nvidia.com/gpu": "8"} if mode == "static" else {},
        },
    }


def pod(name: str = "train-0", **spec: Any) -> FleetPod:
    waiting = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    return decode_fleet_pod(
        {
            "metadata": {"namespace": "team-a", "name": name},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "train"}], **spec},
            "status": {
                "phase": "Pending",
                "conditions": [waiting],
                "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}],
            },
        }
    )


def claim(name: str, request: Request, slices: Sequence[Json], given: Sequence[FleetDevice] = ()) -> Json:
    """The claim of the pod of that name; allocated where something is given."""
    spec = claim_spec(request, shared_cards(device for each in slices for device in decode_fleet_slice(each).devices))
    found: Json = {
        "metadata": {"namespace": "team-a", "name": f"{name}-gpu", "uid": name},
        "spec": {"devices": spec.devices},
    }
    if given:
        (demand,) = demanded_by(decode_fleet_claim(found))
        memory = next((each.memory for each in demand.alternatives), None)
        results = [
            {
                "driver": DRIVER,
                "pool": each.node,
                "device": each.name,
                "request": "gpu",
                **({"consumedCapacity": {"memory": str(each.consumed(memory))}} if each.shared else {}),
            }
            for each in given
        ]
        reserved = [{"resource": "pods", "name": name, "uid": name}]
        found["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    return found


def decode_pools(slices: Iterable[Json]) -> Mapping[str, Pool]:
    return pools_of(map(decode_fleet_slice, slices))


def cluster(nodes: Sequence[Json], slices: Sequence[Json], claims: Sequence[Json] = ()) -> Fleet:
    decoded = sorted(map(decode_fleet_node, nodes), key=lambda each: each.name)
    return Fleet(tuple(decoded), decode_pools(slices), tuple(map(decode_fleet_claim, claims)))


def filled(
    nodes: Sequence[Json], slices: Sequence[Json], held: Mapping[str, Request], waiting: Mapping[str, Request]
) -> Fleet:
    """A cluster whose claims `held` were given what the scheduler would give, node by node, one after the other."""
    claims: list[Json] = []
    for name, request in held.items():
        known = cluster(nodes, slices, claims)
        asked = claim(name, request, slices)
        (demand,) = demanded_by(decode_fleet_claim(asked))
        rooms = known.rooms().values()
        choices = (served(room, each) for room in rooms for each in demand.alternatives)
        given = next((each for each in choices if each is not None), None)
        assert given is not None, f"no room for {name}"
        claims.append(claim(name, request, slices, given))
    claims += [claim(name, request, slices) for name, request in waiting.items()]
    return cluster(nodes, slices, claims)


def asked_by_hand(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A claim that somebody wrote, of these requests."""
    named = [{"name": f"r{number}", "exactly": each} for number, each in enumerate(requests)]
    raw = {"metadata": {"namespace": "team-a", "name": "train-0-gpu"}, "spec": {"devices": {"requests": named}}}
    return raw | more
