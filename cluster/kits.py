"""The programs that a cluster is made of, in the kits that they are released in, with the versions that are pinned.

The versions are read from `go/go.mod`, so that a download and a build give the same ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release.errors import ReleaseError
from release.go_build import GoModule

from cluster.errors import ClusterError, UnsuitableMachine
from tranche_simulator.build import cache_directory

GO_MODULE = GoModule(Path(__file__).parent / "go")
_OLDER_MODULE = GoModule(Path(__file__).parent / "go-1.33")
Say = Callable[[str], None]


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


def build_kits(kits: Sequence[Kit], target: Path, say: Say) -> None:
    """Compile the programs of `kits` into `target`. Takes many minutes of every core.

    Raises:
        UnsuitableMachine: there is no Go.
        ClusterError: a module cannot be fetched or compiled.
    """
    programs = {name: package for kit in kits for name, package in kit.programs.items()}
    stamps = _stamps(KUBERNETES.version) | {"github.com/containerd/containerd/v2/version.Version": CONTAINERD.version}
    what = ", ".join(f"{kit.name} {kit.version}" for kit in kits)
    build(GO_MODULE, programs, target, what, say, stamps=stamps)


def ensure_older(say: Say) -> Path:
    """The folder with programs of an older Kubernetes, for tests of clusters without claims.

    They are built if they are not there, as `go-1.33/go.mod` pins them: about five minutes on two cores, and 330 MB.

    Raises:
        UnsuitableMachine: there is no Go.
        ClusterError: a module cannot be fetched or compiled.
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
        UnsuitableMachine: there is no Go, or no C compiler where `cgo` needs one.
        ClusterError: a module cannot be fetched or compiled.
    """
    missing = [name for name in ("go", *(["gcc"] if cgo else [])) if shutil.which(name) is None]
    if missing:
        raise UnsuitableMachine(
            f"{what} must be built, and there is no {' and no '.join(missing)}",
            hint="install it, or name a folder with the cluster's programs in TRANCHE_CLUSTER_BIN",
        )
    say(f"building {what}: once, and it takes a while")
    try:
        module.build(programs, target, f"building {what}", say, stamps=stamps, cgo=cgo)
    except ReleaseError as error:
        raise ClusterError(str(error)) from error


def _stamps(version: str) -> dict[str, str]:
    """Without them, nodes would report v0.0.0."""
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return {f"k8s.io/component-base/version.{name}": value for name, value in values.items()}
