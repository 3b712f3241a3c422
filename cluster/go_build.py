"""Builds the cluster's programs from their published Go modules, pinned by `go/go.mod` and `go/go.sum`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from release.go_build import STRIPPED, go_build

from cluster.errors import ClusterError, UnsuitableMachine
from cluster.kits import CONTAINERD, GO_MODULE, KUBERNETES, Kit


def build_kits(kits: Sequence[Kit], target: Path, say: Callable[[str], None]) -> None:
    """Compile the programs of `kits` into `target`. Takes many minutes of every core.

    The programs appear in `target` only when all are built. Builds of two processes do not disturb each other.

    Raises:
        UnsuitableMachine: there is no Go.
        ClusterError: a module cannot be fetched or compiled.
    """
    go = shutil.which("go")
    if go is None:
        raise UnsuitableMachine(
            "the cluster's programs are neither installed nor downloadable, and there is no Go to build them with",
            hint="install Go, or name a folder that has them in TRANCHE_CLUSTER_BIN",
        )
    names = ", ".join(f"{kit.name} {kit.version}" for kit in kits)
    say(f"building {names}: once, and it takes a while")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        packages = [package for kit in kits for package in kit.programs.values()]
        built = go_build(
            go,
            packages,
            f"{folder}/",
            module=GO_MODULE,
            doing=f"building {names}",
            say=say,
            linker_flags=_linker_flags(),
        )
        if built.returncode != 0:
            raise ClusterError(f"go build failed:\n{built.stdout[-2000:]}")
        for kit in kits:
            for name, package in kit.programs.items():
                os.replace(Path(folder) / _output_name(package), target / name)


def _linker_flags() -> str:
    """Versions are stamped: without it, nodes would report v0.0.0."""
    major, minor, _ = KUBERNETES.version.removeprefix("v").split(".")
    stamps = {
        "k8s.io/component-base/version.gitVersion": KUBERNETES.version,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/component-base/version.gitTreeState": "clean",
        "github.com/containerd/containerd/v2/version.Version": CONTAINERD.version,
    }
    return " ".join((STRIPPED, *(f"-X {name}={value}" for name, value in stamps.items())))


def _output_name(package: str) -> str:
    """The name that `go build` gives a program: the last part of its package that is no major version."""
    parts = package.split("/")
    return parts[-2] if parts[-1].removeprefix("v").isdecimal() else parts[-1]
