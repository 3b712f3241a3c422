"""Images as containerd keeps them, unpacked: the first node's are kept in the cache, and each later node links them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cluster.errors import ClusterError
from tranche_simulator.build import cache_directory

_KEPT = 2
_DATABASES = "*/*.db"
"""What containerd writes to; it only adds or removes whole files beside them."""
_OF_ONE_NODE = "io.containerd.grpc.v1.introspection"


def image_store(containerd: str, archives: Sequence[Path], digests: Sequence[str]) -> Path:
    """Where the store of these images is kept, if it is: those of the archives, and others by digest."""
    found = hashlib.sha256(containerd.encode())
    for archive in archives:
        found.update(hashlib.sha256(archive.read_bytes()).digest())
    for digest in digests:
        found.update(digest.encode())
    return cache_directory() / "cluster" / "image-stores" / found.hexdigest()[:16]


def keep_store(root: Path, store: Path) -> None:
    """Keep the folder of a containerd that does not run, and of all stores those that were used last."""
    store.parent.mkdir(parents=True, exist_ok=True)
    _link(root, store)
    shutil.rmtree(store / _OF_ONE_NODE, ignore_errors=True)
    stores = sorted(store.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in stores[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def use_store(store: Path, root: Path) -> None:
    """Give a containerd that has not run yet what is kept."""
    os.utime(store)
    _link(store, root)


def _link(source: Path, target: Path) -> None:
    """Make a copy whose files are links, or copies on another file system; databases are copied in any case.

    Raises:
        ClusterError: it cannot be made.
    """
    unfinished = target.with_name(f"{target.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    if _copied("-al", source, unfinished):
        shutil.rmtree(unfinished, ignore_errors=True)
        if said := _copied("-a", source, unfinished):
            raise ClusterError(f"{source} cannot be copied: {said}")
    for database in source.glob(_DATABASES):
        copy = unfinished / database.relative_to(source)
        copy.unlink()
        shutil.copy2(database, copy)
    os.utime(unfinished)
    unfinished.rename(target)


def _copied(option: str, source: Path, target: Path) -> str:
    """What `cp` complains of."""
    done = subprocess.run(["cp", option, str(source), str(target)], capture_output=True, text=True, check=False)
    return done.stderr.strip() or str(done.returncode) if done.returncode else ""
