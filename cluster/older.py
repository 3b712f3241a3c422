"""Kubernetes of an older release, for tests of clusters without claims: built once, from its published modules.

`go-1.33/go.mod` pins it. It takes about five minutes on two cores, and 330 MB.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from release.go_build import STRIPPED, go_build

from cluster.errors import ClusterError, UnsuitableMachine
from tranche_simulator.build import cache_directory

_MODULE = Path(__file__).parent / "go-1.33"
_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_VERSION = "k8s.io/component-base/version"


def ensure_older(say: Callable[[str], None]) -> Path:
    """The folder with its programs, which are built if they are not there.

    Raises:
        UnsuitableMachine: there is no Go.
        ClusterError: a module cannot be fetched or compiled.
    """
    pins = hashlib.sha256((_MODULE / "go.mod").read_bytes() + (_MODULE / "go.sum").read_bytes()).hexdigest()[:16]
    target = cache_directory() / "cluster" / f"older-{pins}-{platform.machine()}"
    if all((target / name).is_file() for name in _PROGRAMS):
        return target
    go = shutil.which("go")
    if go is None:
        raise UnsuitableMachine("an older Kubernetes is built with Go, and there is none", hint="install Go")
    found = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)", (_MODULE / "go.mod").read_text())
    assert found is not None, "go.mod pins a release"
    stamps = {"gitVersion": found[1], "gitMajor": found[2], "gitMinor": found[3], "gitTreeState": "clean"}
    flags = " ".join((STRIPPED, *(f"-X {_VERSION}.{name}={value}" for name, value in stamps.items())))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        built = go_build(
            go,
            [f"k8s.io/kubernetes/cmd/{name}" for name in _PROGRAMS],
            f"{folder}/",
            module=_MODULE,
            doing=f"building kubernetes {found[1]}",
            say=say,
            linker_flags=flags,
        )
        if built.returncode != 0:
            raise ClusterError(f"go build failed:\n{built.stdout[-2000:]}")
        target.mkdir(exist_ok=True)
        for name in _PROGRAMS:
            os.replace(Path(folder) / name, target / name)
    return target
