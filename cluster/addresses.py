"""The addresses that a cluster adds to this machine: one, where its API server is to be found by every pod.

Pods are told the address of the Service `kubernetes`. With the address on loopback, the machine itself answers there: for its own
programs, for pods in its network, and for pods behind a bridge, whose packets come to the machine first. There is no kube-proxy.
"""

from __future__ import annotations

import json
import subprocess

from cluster.errors import ClusterError, UnsuitableMachine

_LOOPBACK = "lo"


def node_address() -> str:
    """The machine's first address that is not on loopback: a kubelet refuses to have one there.

    Raises:
        UnsuitableMachine: it has none.
    """
    for _, address, scope in _addresses():
        if scope == "global":
            return address
    raise UnsuitableMachine("this machine has no IPv4 address outside loopback, and a node needs one")


def routes_and_addresses() -> str:
    """What is routed and which addresses there are, as `ip` prints both."""
    return "".join(_ip(*words) for words in (("route",), ("-4", "address")))


def add_address(address: str, lock: int) -> bool:
    """Put an address on loopback; False when it is there already. Of several processes that try at once, one is told True.

    Its scope keeps it from being taken for an address of the machine. The program keeps the host's lock, for when this process is
    killed before the program has done its work: whoever removes the address waits for it.
    """
    words = ["ip", "address", "add", f"{address}/32", "dev", _LOOPBACK, "scope", "host"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, pass_fds=(lock,))
    if done.returncode != 0 and not has_address(address):
        raise ClusterError(f"{address} cannot be put on loopback: {done.stderr.strip()}")
    return done.returncode == 0


def remove_address(address: str) -> None:
    """Take it away again, if it is there. The caller holds the host's lock."""
    if has_address(address):
        _ip("address", "delete", f"{address}/32", "dev", _LOOPBACK)


def has_address(address: str) -> bool:
    """Whether loopback has it."""
    return any((name, each) == (_LOOPBACK, address) for name, each, _ in _addresses())


def _addresses() -> list[tuple[str, str, str]]:
    """Interface, address and scope of every IPv4 address on an interface that is up."""
    return [
        (interface["ifname"], entry["local"], entry["scope"])
        for interface in json.loads(_ip("-json", "-4", "address", "show", "up"))
        for entry in interface.get("addr_info", [])
    ]


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
