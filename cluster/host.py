"""What a cluster needs of the machine, and changes on it outside its own folder: written down first, put back with the last one.

Kubelets change kernel parameters and never restore them; nodes need a few folders to mount their own over.

A cluster adds one address, where its API server is to be found by every pod: pods are told the address of the Service
`kubernetes`. With the address on loopback, the machine itself answers there: for its own programs, for pods in its network, and
for pods behind a bridge, whose packets come to the machine first. There is no kube-proxy.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from release.debian_packages import install_packages
from release.errors import ReleaseError
from release.progress import Say

from cluster.errors import ClusterError, UnsuitableMachine
from cluster.units import hierarchies, is_unified

_INOTIFY = "fs/inotify/max_user_instances"
_INOTIFY_INSTANCES = 1024
"""Two nodes, with containerd and kubelet and what their pods watch, use most of the kernel's default of 128."""
# What a kubelet, the bridge plugin and this module write to.
SYSCTLS = (
    _INOTIFY,
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "net/ipv4/ip_forward",
)
# Paths that kubelet, containerd and the CNI library have built in, and where the agent's chart keeps its register. Each node has
# folders of its own mounted over them.
NODE_FOLDERS = (
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/lib/tranche",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
    "/run/cdi",
)
_RECORD = "host.json"
_LOOPBACK = "lo"
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


def clusters_directory() -> Path:
    """Where clusters are kept: $TRANCHE_CLUSTER_ROOT, else /var/lib/tranche-clusters. Sockets lie in it: a short path."""
    return Path(os.environ.get("TRANCHE_CLUSTER_ROOT") or "/var/lib/tranche-clusters")


def cluster_directories() -> list[Path]:
    """The folders of the clusters on this machine, broken ones included."""
    root = clusters_directory()
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


@contextmanager
def host_lock() -> Iterator[int]:
    """Hold off other processes that begin or end a cluster. A program that inherits the descriptor holds them off as well."""
    lock = _locked()
    try:
        yield lock
    finally:
        os.close(lock)


def prepare_host() -> None:
    """Write down how the machine is, unless a cluster has done so; make the folders that nodes mount over; allow more watches.

    The caller holds the lock.
    """
    record = clusters_directory() / _RECORD
    if not record.exists():
        sysctls = {name: value for name in SYSCTLS if (value := read_sysctl(name)) is not None}
        unfinished = record.with_suffix(".new")
        unfinished.write_text(json.dumps({"sysctls": sysctls, "folders": _folders_to_make()}, indent=2) + "\n")
        unfinished.replace(record)
    for folder in NODE_FOLDERS:
        os.makedirs(folder, exist_ok=True)
    if int(read_sysctl(_INOTIFY) or _INOTIFY_INSTANCES) < _INOTIFY_INSTANCES:
        with suppress(OSError):  # read-only in some containers
            _write_sysctl(_INOTIFY, str(_INOTIFY_INSTANCES))


def restore_host() -> None:
    """Put the machine back as it was written down, if no cluster is left. The caller holds the lock."""
    root = clusters_directory()
    if cluster_directories():
        return
    record = root / _RECORD
    if record.exists():
        before = json.loads(record.read_text())
        for name, value in before["sysctls"].items():
            if read_sysctl(name) != value:
                _write_sysctl(name, value)
        for folder in before["folders"]:
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)
        record.unlink()
    (root / "lock").unlink()
    with suppress(OSError):  # who waited for the lock may have made a new one already
        root.rmdir()


def _folders_to_make() -> list[str]:
    """Folders that do not exist yet, innermost first."""
    missing = set()
    for folder in NODE_FOLDERS:
        missing |= {str(path) for path in (Path(folder), *Path(folder).parents) if not path.exists()}
    return sorted(missing, key=len, reverse=True)


def read_sysctl(name: str) -> str | None:
    """A kernel parameter, by its path below /proc/sys; None where the kernel has none of that name."""
    try:
        return (Path("/proc/sys") / name).read_text().strip()
    except OSError:
        return None


def _write_sysctl(name: str, value: str) -> None:
    (Path("/proc/sys") / name).write_text(value)


def _locked() -> int:
    """The lock file, open and locked. Its last holder may have removed it, and the folder with it: then it is made anew."""
    path = clusters_directory() / "lock"
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_at(path, lock):
            return lock
        os.close(lock)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


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


def cni_folder() -> str | None:
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


def install_missing(say: Say) -> None:
    """Install the packages that are missing, on Debian and its kin.

    Raises:
        UnsuitableMachine: this is another distribution, or a package cannot be installed.
    """
    try:
        install_packages(_missing_packages(), "a cluster", say)
    except ReleaseError as error:
        raise UnsuitableMachine(error.message, hint=error.hint) from error
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
