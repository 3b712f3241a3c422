"""The programs that a cluster is made of, and where they come from: a named folder, PATH, the cache, a download, or a build.

Their versions are pinned in `go/go.mod`, so that a download and a build give the same ones. Each file that is downloaded is
checked against the checksum that its project publishes beside it. That finds a broken transfer; against a forged release there is
TLS alone.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from release.go_build import GoModule
from release.one_at_a_time import one_at_a_time
from release.progress import Say, telling

from cluster.errors import ClusterError, UnsuitableMachine
from tranche_simulator.build import cache_directory

PROGRAMS = "a cluster's programs"
"""What processes wait for that need them while another one builds them."""
FOLDER_VARIABLE = "TRANCHE_CLUSTER_BIN"
GO_MODULE = GoModule(Path(__file__).parent / "go")
_OLDER_MODULE = GoModule(Path(__file__).parent / "go-1.33")
_RELEASE = re.compile(r"v?(\d+)\.(\d+)\.\d+")
_TIMEOUT_SECONDS = 10.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Kit:
    """Programs that are released together and are taken from one place together.

    `programs` maps a program's name to its Go package. The first one is asked for its version; `oldest` is the oldest release
    (major, minor) that serves.
    """

    name: str
    module: str
    programs: dict[str, str]
    oldest: tuple[int, int]

    @property
    def version(self) -> str:
        """The pinned release, such as v1.36.3."""
        return GO_MODULE.versions[self.module]


def _commands(module: str, names: tuple[str, ...]) -> dict[str, str]:
    return {name: f"{module}/cmd/{name}" for name in names}


KUBERNETES = Kit(
    "kubernetes",
    "k8s.io/kubernetes",
    _commands(
        "k8s.io/kubernetes",
        ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    ),
    oldest=(1, 36),
)
ETCD = Kit("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}, oldest=(3, 6))
CONTAINERD = Kit(
    "containerd",
    "github.com/containerd/containerd/v2",
    _commands("github.com/containerd/containerd/v2", ("containerd", "containerd-shim-runc-v2", "ctr")),
    oldest=(2, 1),
)
KITS = (KUBERNETES, ETCD, CONTAINERD)


Binaries = dict[str, str]
"""Where each program lies."""


def replaced(binaries: Binaries, folder: str) -> Binaries:
    """The same, but for the programs that lie in that folder; "" for none."""
    found = {name: f"{folder}/{name}" for name in binaries if folder and Path(folder, name).is_file()}
    return binaries | found


def cached_programs() -> Path:
    """The folder that downloads and builds go to. Its name changes with the pinned versions."""
    return cache_directory() / "cluster" / GO_MODULE.pins / "bin"


def find_binaries() -> Binaries | None:
    """Every program, if all are on this machine already; nothing is fetched or built."""
    found: Binaries = {}
    for kit in KITS:
        programs = _find(kit)
        if programs is None:
            return None
        found |= {name: str(path) for name, path in programs.items()}
    return found


def ensure_binaries(say: Say) -> Binaries:
    """Every program: those that are missing are downloaded, and built where that fails.

    Raises:
        ReleaseError: a program can neither be found nor downloaded nor built.
    """
    with one_at_a_time(PROGRAMS, say):
        missing = [kit for kit in KITS if _find(kit) is None]
        if missing:
            target = cached_programs()
            target.mkdir(parents=True, exist_ok=True)
            to_build = [kit for kit in missing if not _downloaded(kit, target, say)]
            if to_build:
                _build_kits(to_build, target, say)
        binaries = find_binaries()
    if binaries is None:
        raise ClusterError("some of the cluster's programs are still missing after a download and a build")
    return binaries


def ensure_older(say: Say) -> Path:
    """The folder with programs of an older Kubernetes, for tests of clusters without claims.

    They are built if they are not there, as `go-1.33/go.mod` pins them: about five minutes on two cores, and 330 MB.

    Raises:
        UnsuitableMachine: there is no Go.
        ReleaseError: a module cannot be fetched or compiled.
    """
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
    target = cache_directory() / "cluster" / f"older-{_OLDER_MODULE.pins}"
    if not all((target / name).is_file() for name in names):
        version = _OLDER_MODULE.versions["k8s.io/kubernetes"]
        programs = _commands("k8s.io/kubernetes", names)
        build(_OLDER_MODULE, programs, target, f"kubernetes {version}", say, stamps=_stamps(version))
    return target


def build(
    module: GoModule,
    programs: Mapping[str, str],
    target: Path,
    what: str,
    say: Say,
    *,
    stamps: Mapping[str, str] | None = None,
    cgo: bool = False,
) -> None:
    """Compile programs, by name their packages, into the folder `target`; `what` they are is said while it lasts.

    Raises:
        UnsuitableMachine: there is no Go.
        ReleaseError: a module cannot be fetched or compiled.
    """
    if shutil.which("go") is None:
        raise UnsuitableMachine(
            f"{what} must be built, and there is no go",
            hint=f"install it, or name a folder with the cluster's programs in {FOLDER_VARIABLE}",
        )
    say(f"building {what}: once, and it takes a while")
    module.build(programs, target, f"building {what}", say, stamps=stamps, cgo=cgo)


def _build_kits(kits: Sequence[Kit], target: Path, say: Say) -> None:
    programs = {name: package for kit in kits for name, package in kit.programs.items()}
    stamps = _stamps(KUBERNETES.version) | {"github.com/containerd/containerd/v2/version.Version": CONTAINERD.version}
    what = ", ".join(f"{kit.name} {kit.version}" for kit in kits)
    build(GO_MODULE, programs, target, what, say, stamps=stamps)


def _stamps(version: str) -> dict[str, str]:
    """Without them, nodes would report v0.0.0."""
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return {f"k8s.io/component-base/version.{name}": value for name, value in values.items()}


def _find(kit: Kit) -> dict[str, Path] | None:
    chosen = os.environ.get(FOLDER_VARIABLE)
    places = [Path(chosen)] if chosen else []
    on_path = shutil.which(next(iter(kit.programs)))
    if on_path:
        places.append(Path(on_path).parent)
    places.append(cached_programs())
    for place in places:
        programs = {name: place / name for name in kit.programs}
        if all(os.access(path, os.X_OK) for path in programs.values()) and _recent_enough(kit, place):
            return programs
    return None


def _recent_enough(kit: Kit, place: Path) -> bool:
    """Whether the kit's first program is of a release that serves. What is in the cache was pinned by us."""
    if place == cached_programs():
        return True
    program = place / next(iter(kit.programs))
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    release = _RELEASE.search(said)
    return release is not None and (int(release[1]), int(release[2])) >= kit.oldest


class Source(NamedTuple):
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


def download_kit(kit: Kit, target: Path, fetch: Callable[[str], bytes] | None = None) -> None:
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


def _checked(source: Source, fetch: Callable[[str], bytes]) -> bytes:
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


def _downloaded(kit: Kit, target: Path, say: Say) -> bool:
    try:
        with telling(f"downloading {kit.name} {kit.version}", say):
            download_kit(kit, target)
    except (OSError, ClusterError) as error:
        say(f"{kit.name} {kit.version} cannot be downloaded ({error})")
        return False
    say(f"downloaded {kit.name} {kit.version}")
    return True
