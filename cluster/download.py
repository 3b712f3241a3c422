"""Downloads official builds of the cluster's programs, where the network allows.

Each file is checked against the checksum that its project publishes beside it. That finds a broken transfer; against a forged
release there is TLS alone.
"""

from __future__ import annotations

import hashlib
import io
import platform
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.kits import CONTAINERD, ETCD, KUBERNETES, Kit

_TIMEOUT_SECONDS = 10.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
Fetch = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Source:
    """One file to fetch: a program, or an archive that holds some. `checksums` has its SHA-256."""

    url: str
    checksums: str


def sources(kit: Kit, architecture: str) -> list[Source]:
    """The files that hold the programs of a kit."""
    version, number = kit.version, kit.version.removeprefix("v")
    if kit == KUBERNETES:
        base = f"https://dl.k8s.io/release/{version}/bin/linux/{architecture}"
        return [Source(f"{base}/{name}", f"{base}/{name}.sha256") for name in kit.programs]
    if kit == ETCD:
        base = f"https://github.com/etcd-io/etcd/releases/download/{version}"
        return [Source(f"{base}/etcd-{version}-linux-{architecture}.tar.gz", f"{base}/SHA256SUMS")]
    assert kit == CONTAINERD
    url = f"https://github.com/containerd/containerd/releases/download/{version}/containerd-{number}-linux-{architecture}.tar.gz"
    return [Source(url, f"{url}.sha256sum")]


def download_kit(kit: Kit, target: Path, fetch: Fetch | None = None) -> None:
    """Put the programs of a kit into `target`, all or none.

    Raises:
        OSError: the network does not answer.
        ClusterError: no builds for this processor, a checksum that differs, or an archive without a program.
    """
    fetch = fetch or _fetch
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise ClusterError(f"there are no official builds for {platform.machine()}")
    programs: dict[str, bytes] = {}
    for source in sources(kit, architecture):
        programs |= _programs_of(source, _checked(source, fetch))
    missing = kit.programs.keys() - programs.keys()
    if missing:
        raise ClusterError(f"the release of {kit.name} lacks {', '.join(sorted(missing))}")
    for name in kit.programs:
        unfinished = target / f".{name}"
        unfinished.write_bytes(programs[name])
        unfinished.chmod(0o755)
    for name in kit.programs:
        (target / f".{name}").replace(target / name)


def _checked(source: Source, fetch: Fetch) -> bytes:
    name = source.url.rsplit("/", 1)[1]
    checksum = _checksum_of(name, fetch(source.checksums).decode())
    content = fetch(source.url)
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ClusterError(f"{source.url} does not have the checksum that its project publishes")
    return content


def _checksum_of(name: str, text: str) -> str:
    """The checksum of a file, from a list of `checksum name` lines or from a file with the checksum alone."""
    alone = re.fullmatch(r"\s*([0-9a-f]{64})\s*", text)
    listed = re.search(rf"^([0-9a-f]{{64}})\s+\*?{re.escape(name)}$", text, re.MULTILINE)
    match = alone or listed
    if match is None:
        raise ClusterError(f"no checksum is published for {name}")
    return match[1]


def _programs_of(source: Source, content: bytes) -> dict[str, bytes]:
    if not source.url.endswith(".tar.gz"):
        return {source.url.rsplit("/", 1)[1]: content}
    programs = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                programs[Path(member.name).name] = file.read()
    return programs


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
        content: bytes = answer.read()
    return content
