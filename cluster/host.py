"""What a cluster changes on the machine outside its own folder, written down first and put back when the last cluster goes.

Kubelets change kernel parameters and never restore them; nodes need a few folders to mount their own over.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What a kubelet and the bridge plugin write to.
SYSCTLS = (
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
    """Write down how the machine is, unless a cluster has done so, and make the folders that nodes mount over.

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
                (Path("/proc/sys") / name).write_text(value)
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
