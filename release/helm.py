"""Helm: the one on PATH where it is new enough, else built once from its Go module, pinned by `go/go.mod` and `go/go.sum`."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release.errors import ReleaseError
from release.go_build import STRIPPED, go_build
from release.one_at_a_time import one_at_a_time
from tranche_simulator.build import cache_directory

GO_MODULE = Path(__file__).parent / "go"
_PACKAGE = "helm.sh/helm/v3"
_OLDEST = (3, 14)
_VERSION = re.compile(r"v(\d+)\.(\d+)\.\d+")


def helm() -> Path:
    """The program. Its build takes some three minutes of one core; one minute less where the test cluster's programs were built.

    Raises:
        ReleaseError: there is neither a Helm nor a Go to build it with, or the build fails.
    """
    on_path = shutil.which("helm")
    if on_path and _version(on_path) >= _OLDEST:
        return Path(on_path)
    cached = _cached()
    if not os.access(cached, os.X_OK):
        with one_at_a_time("Helm", _say):
            if not os.access(cached, os.X_OK):
                _build(cached)
    return cached


def why_no_helm() -> str:
    """Why no Helm can be had here; empty when one can."""
    on_path = shutil.which("helm")
    if (on_path and _version(on_path) >= _OLDEST) or os.access(_cached(), os.X_OK) or shutil.which("go"):
        return ""
    return f"there is no Helm {_OLDEST[0]}.{_OLDEST[1]} or newer on PATH, and no Go to build one with"


def _version(program: str) -> tuple[int, int]:
    said = subprocess.run([program, "version", "--short"], capture_output=True, text=True, check=False).stdout
    found = _VERSION.search(said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _cached() -> Path:
    pins = hashlib.sha256((GO_MODULE / "go.mod").read_bytes() + (GO_MODULE / "go.sum").read_bytes())
    return cache_directory() / "helm" / f"{pins.hexdigest()[:16]}-{platform.machine()}" / "helm"


def _build(target: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise ReleaseError("there is neither a Helm on PATH nor a Go to build one with", hint="install Helm or Go")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        made = Path(folder) / "helm"
        built = go_build(
            go,
            [f"{_PACKAGE}/cmd/helm"],
            str(made),
            module=GO_MODULE,
            doing="building Helm, once",
            say=_say,
            linker_flags=_linker_flags(),
        )
        if built.returncode != 0:
            raise ReleaseError(f"go build of Helm failed:\n{built.stdout[-2000:]}")
        os.replace(made, target)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _linker_flags() -> str:
    """Versions are stamped: without it, Helm would take every cluster that it only renders for as Kubernetes 1.20."""
    versions = dict(re.findall(r"^\s*(\S+) (v\d\S*)", (GO_MODULE / "go.mod").read_text(), re.MULTILINE))
    _, minor, _ = versions["k8s.io/client-go"].split(".")
    stamps = {f"{_PACKAGE}/internal/version.version": versions[_PACKAGE]}
    for package in ("chartutil", "lint/rules"):
        stamps |= {
            f"{_PACKAGE}/pkg/{package}.k8sVersionMajor": "1",
            f"{_PACKAGE}/pkg/{package}.k8sVersionMinor": minor,
        }
    return " ".join((STRIPPED, *(f"-X {name}={value}" for name, value in stamps.items())))
