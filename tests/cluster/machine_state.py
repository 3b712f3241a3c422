"""What a cluster could leave behind on a machine, read so that two moments can be compared."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.host import NODE_FOLDERS, SYSCTLS, clusters_directory
from cluster.units import Cgroup, hierarchies
from cluster.waiting import wait_for

from tranche_simulator.build import cache_directory

# Counters and what the kernel itself moves on.
_MOVING = ("kernel/random", "kernel/ns_last_pid", "fs/", "net/netfilter/nf_conntrack_count", "kernel/pty/nr", "debug")


@dataclass(frozen=True, slots=True)
class MachineState:
    """Mounts, cgroups, interfaces, addresses, kernel parameters and folders of the machine; programs of a cluster that run.

    Not among the parameters are those that every kubelet sets: one of another cluster may do so at any time.
    """

    mounts: frozenset[str]
    cgroups: frozenset[str]
    interfaces: frozenset[str]
    addresses: frozenset[str]
    sysctls: frozenset[tuple[str, str]]
    folders: frozenset[str]
    programs: frozenset[str]

    @classmethod
    def now(cls, cluster: str) -> MachineState:
        """Read it; cgroups and programs of the named cluster alone."""
        places = {clusters_directory(), *(Path(folder).parent for folder in NODE_FOLDERS), Path("/etc"), Path("/opt")}
        return cls(
            frozenset(_mounts()),
            frozenset(str(folder) for root in hierarchies() for folder in root.glob(f"tranche-{cluster}")),
            frozenset(_interfaces()),
            frozenset(_addresses()),
            frozenset(_sysctls()),
            frozenset(str(path) for place in places if place.is_dir() for path in place.iterdir()),
            frozenset(_programs(cluster)),
        )

    def changes(self, later: MachineState) -> dict[str, tuple[list[str], list[str]]]:
        """What is gone and what is new at a later moment, by kind; empty when nothing differs."""
        return {
            kind: (sorted(map(str, before - after)), sorted(map(str, after - before)))
            for kind in self.__slots__
            if (before := getattr(self, kind)) != (after := getattr(later, kind))
        }


def assert_left_as(before: MachineState, cluster: str, kinds: Sequence[str] = MachineState.__slots__) -> None:
    """Of these kinds, nothing differs from before.

    The kernel takes network namespaces down a moment later, and other clusters may move.
    """

    def changes() -> dict[str, tuple[list[str], list[str]]]:
        found = before.changes(MachineState.now(cluster))
        return {kind: change for kind, change in found.items() if kind in kinds}

    wait_for("nothing is left behind", lambda: not changes(), period=1.0, explain=lambda: str(changes()))


def _mounts() -> list[str]:
    """Mounts but for those of other tests and of containers and images of the host's; a cluster mounts nothing there."""
    elsewhere = ("/pytest-of-", f"{cache_directory()}/", "/var/lib/containers/", "/var/lib/docker/")
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line for line in lines if not any(place in line.split()[1] for place in elsewhere)]


def _interfaces() -> list[str]:
    """Network interfaces but for the ends of pods' links that are in use: those of other clusters come and go."""
    interfaces = Path("/sys/class/net").iterdir()
    return [path.name for path in interfaces if not (path.name.startswith("veth") and (path / "master").exists())]


def _addresses() -> list[str]:
    """The IPv4 addresses of loopback, which every cluster adds one to."""
    listed = subprocess.run(
        ["ip", "-brief", "-4", "address", "show", "dev", "lo"], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()[2:]


def _sysctls() -> list[tuple[str, str]]:
    values = []
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            path = Path(folder) / name
            key = str(path.relative_to("/proc/sys"))
            if (
                not key.startswith(_MOVING)
                and key not in SYSCTLS
                and "/veth" not in key
                and (value := _value(path)) is not None
            ):
                values.append((key, value))
    return values


def _value(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _programs(cluster: str) -> list[str]:
    """Processes in the cluster's cgroup that have not ended."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and Cgroup(f"tranche-{cluster}").contains(int(process.name)):
            found.append(f"{process.name} {_value(process / 'cmdline')}")
    return found
