"""Whether the examples are what Kubernetes and Argo take."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from release import argo
from release.image_sources import ROOT
from release.kubernetes_schemas import VERSIONS, objections

EXAMPLES = ROOT / "deploy" / "examples"


def problems(folder: Path = EXAMPLES) -> list[str]:
    """What the schemas of Kubernetes and of Argo object to, and names in workflows that lead nowhere.

    Where Argo's schema cannot be had, a line on stderr says that only names were looked at.

    Raises:
        ReleaseError: Argo's schema cannot be fetched, though there is a Go to fetch it with.
    """
    found = []
    for file in sorted(folder.rglob("*.yaml")):
        for item in yaml.safe_load_all(file.read_text()):
            found += [f"{file.relative_to(folder)}: {line}" for line in _objections(item)]
    return found


def _objections(item: Any) -> Iterator[str]:
    if str(item.get("apiVersion", "")).startswith("argoproj.io/"):
        yield from argo.dangling(item)
        if reason := argo.why_no_schema():
            print(f"not checked against Argo's schema: {reason}", file=sys.stderr)
        else:
            yield from argo.objections(item)
        return
    for version in VERSIONS:
        yield from objections([item], version)
