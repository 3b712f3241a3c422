"""The programs that a cluster is made of, in the kits that they are released in, with the versions that are pinned.

The versions are read from `go/go.mod`, so that a download and a build give the same ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GO_MODULE = Path(__file__).parent / "go"


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
        return pinned_versions()[self.module]


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


@cache
def pinned_versions() -> dict[str, str]:
    """Module path to version, as `go/go.mod` requires them."""
    text = (GO_MODULE / "go.mod").read_text()
    return dict(re.findall(r"^\s*(\S+) (v\d\S*)(?: //.*)?$", text, re.MULTILINE))
