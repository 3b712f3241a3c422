"""Helm: the one on PATH where it is new enough, else built once from its Go module, pinned by `go/go.mod` and `go/go.sum`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from release.go_build import GoModule
from release.one_at_a_time import one_at_a_time
from release.progress import say_beside
from tranche_simulator.build import cache_directory

_MODULE = GoModule(Path(__file__).parent / "go")
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
        with one_at_a_time("Helm", say_beside):
            if not os.access(cached, os.X_OK):
                programs = {"helm": f"{_PACKAGE}/cmd/helm"}
                _MODULE.build(programs, cached.parent, "building Helm, once", say_beside, stamps=_stamps())
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
    return cache_directory() / "helm" / _MODULE.pins / "helm"


def _stamps() -> dict[str, str]:
    """Without them, Helm would take every cluster that it only renders for as Kubernetes 1.20."""
    versions = _MODULE.versions
    _, minor, _ = versions["k8s.io/client-go"].split(".")
    stamps = {f"{_PACKAGE}/internal/version.version": versions[_PACKAGE]}
    for package in ("chartutil", "lint/rules"):
        stamps |= {
            f"{_PACKAGE}/pkg/{package}.k8sVersionMajor": "1",
            f"{_PACKAGE}/pkg/{package}.k8sVersionMinor": minor,
        }
    return stamps
