"""What is written down about a cluster, before anything of it exists: enough to find and remove all of it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cluster.errors import ClusterError
from tranche_simulator import MACHINE_TYPES

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
_FILE = "cluster.json"
_SLOTS = 32
_FIRST_PORT, _PORTS_PER_SLOT = 16000, 100
_NODES_MAX = 29


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node: its number in the cluster, from 1 on, and the type of its simulated machine; no GPUs without one."""

    name: str
    index: int
    machine: str


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """One cluster. `slot` is its number on the machine: ports, subnets and bridges follow from it.

    `owner` is the process that the cluster must not outlive, as pid and start time in ticks, if there is one. `emulates` is the
    older minor release, such as 1.33, as which its control plane behaves; "" for its own. `programs` is a folder of programs of
    an older release of Kubernetes, which run in the place of the pinned ones; "" for none. `gates` are alpha feature gates that
    are on in all of its parts; the API server then serves alpha versions, too.
    """

    name: str
    slot: int
    node_address: str
    time_scale: float = 1.0
    owner: tuple[int, int] | None = None
    nodes: tuple[NodeRecord, ...] = field(default=())
    emulates: str = ""
    programs: str = ""
    gates: tuple[str, ...] = ()

    @property
    def cgroup(self) -> str:
        return f"tranche-{self.name}"

    def port(self, offset: int) -> int:
        """A port of this cluster on loopback: 0 to 9 for the control plane, then three for each node."""
        return _FIRST_PORT + self.slot * _PORTS_PER_SLOT + offset

    @property
    def services(self) -> str:
        """Where Services get their addresses from."""
        return f"10.{160 + self.slot}.0.0/16"

    @property
    def service_address(self) -> str:
        """The address of the Service `kubernetes`, as every pod is told it; the API server itself listens there."""
        return f"10.{160 + self.slot}.0.1"

    @property
    def server(self) -> str:
        return f"https://{self.service_address}"

    def bridge(self, node: NodeRecord) -> str:
        """The name of a node's bridge; at most 15 characters, as the kernel wants it."""
        return f"trn{self.slot}n{node.index}"

    def subnet(self, node: NodeRecord) -> str:
        """Where a node's pods get their addresses from."""
        return f"10.{200 + self.slot}.{node.index}.0/24"

    def node(self, name: str) -> NodeRecord:
        """A node by name.

        Raises:
            ClusterError: there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"cluster {self.name} has no node {name!r}")

    def with_node(self, name: str, machine: str) -> ClusterRecord:
        """The record with one more node.

        Raises:
            ClusterError: the name is no node name or is taken, the type is unknown, or there are as many nodes as ports.
        """
        if machine and machine not in MACHINE_TYPES:
            raise ClusterError(f"{machine!r} is no machine type", hint=f"the types are {', '.join(MACHINE_TYPES)}")
        if not NAME.fullmatch(name):
            raise ClusterError(f"{name!r} is no name for a node", hint="use lower-case letters, digits and dashes")
        if any(node.name == name for node in self.nodes):
            raise ClusterError(f"cluster {self.name} has a node {name!r} already")
        index = max((node.index for node in self.nodes), default=0) + 1
        if index > _NODES_MAX:
            raise ClusterError(f"cluster {self.name} has no ports for more nodes")
        return replace(self, nodes=(*self.nodes, NodeRecord(name, index, machine)))

    def save(self, folder: Path) -> None:
        unfinished = folder / f"{_FILE}.new"
        unfinished.write_text(json.dumps(asdict(self), indent=2) + "\n")
        unfinished.replace(folder / _FILE)


def load_record(folder: Path) -> ClusterRecord | None:
    """The record in a cluster's folder; None where there is none or an unreadable one."""
    try:
        fields = json.loads((folder / _FILE).read_text())
        fields["nodes"] = tuple(NodeRecord(**node) for node in fields["nodes"])
        fields["owner"] = tuple(fields["owner"]) if fields["owner"] else None
        fields["gates"] = tuple(fields["gates"])
        return ClusterRecord(**fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def free_slot(taken: Sequence[ClusterRecord], routes: str, is_free: Callable[[int], bool]) -> int:
    """A slot that no cluster has, whose first ports are free and whose subnets are neither routed nor on an interface.

    `routes` is what `ip route` and `ip address` print.

    Raises:
        ClusterError: there is none.
    """
    used = {record.slot for record in taken}
    for slot in range(_SLOTS):
        probe = ClusterRecord("", slot, "")
        ranges = (f"10.{200 + slot}.", f"10.{160 + slot}.")
        if slot in used or any(each in routes for each in ranges):
            continue
        if all(is_free(probe.port(i)) for i in range(10)):
            return slot
    raise ClusterError("this machine has no ports and subnets left for one more cluster")


def port_is_free(port: int, address: str = "127.0.0.1") -> bool:
    """Whether nobody listens on a port of loopback, or of another address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
