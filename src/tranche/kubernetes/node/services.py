"""What the agent's parts share, made once when the agent starts."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.leases import LeaseClient
from tranche.kubernetes.api.objects import KubeNode, KubePod
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.device_health_watch import DeviceHealthWatch
from tranche.kubernetes.node.gpu_events import GpuEventWatch
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
