"""Whether a cluster can run on this machine, and the Debian packages that it needs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from release.debian_packages import install_packages
from release.errors import ReleaseError

from cluster.cgroups import hierarchies, is_unified
from cluster.errors import UnsuitableMachine

# Program or file to the Debian package that has it.
_PROGRAMS = {
    "runc": "runc",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
}
_CNI_FOLDERS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
_CAP_SYS_ADMIN, _CAP_NET_ADMIN = 21, 12


def cni_folder() -> str | None:
    """Where the CNI plugins lie."""
    return next((folder for folder in _CNI_FOLDERS if os.access(f"{folder}/bridge", os.X_OK)), None)


def why_not() -> str:
    """Why no cluster can run here; empty when one can."""
    if sys.platform != "linux":
        return f"a node needs Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "a node needs root, for mounts, cgroups and network interfaces"
    capabilities = _capabilities()
    if not capabilities >> _CAP_SYS_ADMIN & 1 or not capabilities >> _CAP_NET_ADMIN & 1:
        return "a node needs the capabilities to mount and to add network interfaces; this container lacks them"
    if not hierarchies():
        return "a node needs cgroups, and /sys/fs/cgroup has none"
    if not is_unified() and not {"cpu", "cpuacct", "cpuset", "memory"} <= _controllers():
        return "a node needs the cgroup controllers cpu, cpuacct, cpuset and memory"
    if not all(os.access(hierarchy, os.W_OK) for hierarchy in hierarchies()):
        return "a node needs cgroups of its own, and /sys/fs/cgroup is read-only"
    return ""


def install_missing(say: Callable[[str], None]) -> None:
    """Install the packages that are missing, on Debian and its kin.

    Raises:
        UnsuitableMachine: this is another distribution, or a package cannot be installed.
    """
    try:
        install_packages(_missing_packages(), "a cluster", say)
    except ReleaseError as error:
        raise UnsuitableMachine(str(error), hint=error.hint) from error
    if still_missing := _missing_packages():
        raise UnsuitableMachine(
            f"{', '.join(still_missing)} are installed, but what a cluster needs of them is not there"
        )


def _missing_packages() -> list[str]:
    packages = {package for program, package in _PROGRAMS.items() if shutil.which(program) is None}
    if cni_folder() is None:
        packages.add("containernetworking-plugins")
    return sorted(packages)


def _capabilities() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


def _controllers() -> set[str]:
    return {name for hierarchy in hierarchies() for name in hierarchy.name.split(",")}
