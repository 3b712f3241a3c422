"""What the agent's parts share, made once when the agent starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.object_client import LeaseClient
from tranche.kubernetes.api.objects import KubeNode, KubePod
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.gpu_events import DeviceHealthWatch, GpuEventWatch
from tranche.kubernetes.node.inventory import Inventory
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.node.host import Host


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What components share.

    `node` is the node object as last seen (None while there is none), `node_pods` are its pods, perhaps late. `namespace` is
    where ConfigMaps and `leases` are. `backend` is how the cluster gives shares by demand. `connection` reaches the API server
    for what `api` does not do. `host` blocks: call it through `asyncio.to_thread`. `state_problem` says why its state folder is
    not writable, "" when it is.

    The rest is what one part tells another. `registered` is whether the kubelet has the driver for claims. `reserved` are the
    names of devices shown as kept for larger requests. `fallen` are the uids of claims that are over by the API server but still
    have something: their pods run on. `refused` says why pods, by uid, cannot have the share that a controller chose for them.
    """

    node_name: str
    namespace: str
    api: KubeClient
    connection: ApiConnection
    leases: LeaseClient
    backend: LatestValue[AllocationBackend]
    node: LatestValue[KubeNode | None]
    node_pods: LatestValue[tuple[KubePod, ...]]
    inventory: Inventory
    gpu_events: GpuEventWatch
    device_health: DeviceHealthWatch
    pods: PodRegister
    host: Host
    state_problem: LatestValue[str]
    registered: LatestValue[bool] = field(default_factory=LatestValue)
    reserved: LatestValue[frozenset[str]] = field(default_factory=LatestValue)
    fallen: LatestValue[frozenset[str]] = field(default_factory=lambda: LatestValue(frozenset()))
    refused: LatestValue[Mapping[str, str]] = field(default_factory=lambda: LatestValue({}))
