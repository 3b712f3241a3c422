"""Whether the examples for clouds and for machines that boot are well formed: deploy/eks, deploy/boot, and the unit.

eksctl's and Karpenter's own schemas cannot be had without their repositories; ours stand in, which are smaller and closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from release.closed_schemas import objections_to
from release.cloudformation import objections_to_template
from release.image_sources import ROOT
from release.unit_check import objections_to_unit
from release.user_data import (
    objections_to_cloud_config,
    objections_to_commands,
    objections_to_settings,
    objections_to_user_data,
)
from tranche.boot.unit import SETTINGS_FILE, unit_text

DEPLOY = ROOT / "deploy"

_Judge = Callable[[Path], Iterator[str]]


def problems(deploy: Path = DEPLOY, unit: str | None = None) -> list[str]:
    """Every objection, with its file; also a file that nobody judges, and one that is missing.

    `unit` is the text of the systemd unit, else the one that `tranche boot install` writes.
    """
    found = []
    there = {str(path.relative_to(deploy)) for folder in ("eks", "boot") for path in (deploy / folder).glob("*")}
    for name in sorted(there | _JUDGES.keys()):
        if name not in _JUDGES:
            found.append(f"{name}: nothing checks this file")
        elif name not in there:
            found.append(f"{name}: the file is missing")
        else:
            found += [f"{name}: {line}" for line in objections_to_file(name, deploy / name)]
    text = unit or unit_text(("/opt/tranche/bin/tranche", "boot"), settings_file=SETTINGS_FILE, seconds=120.0)
    return found + [f"tranche-boot.service: {line}" for line in objections_to_unit(text)]


def objections_to_file(name: str, path: Path) -> list[str]:
    """What is wrong with a file in the place of the one of that name, such as `eks/cluster.yaml`."""
    return list(_JUDGES[name](path))


def _documents(path: Path) -> Iterator[str]:
    """Objects of eksctl or Karpenter, each by its kind."""
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except yaml.YAMLError as error:
        yield f"no YAML: {error}"
        return
    for document in documents:
        kind = document.get("kind", "") if isinstance(document, dict) else ""
        wrong = [f"{kind}: {line}" for line in objections_to(document, kind)]
        yield from wrong
        if not wrong:
            yield from (f"{kind}: {line}" for line in _within(document))


def _within(document: dict[str, Any]) -> Iterator[str]:
    """What is written inside of an object for the nodes, and how its parts hang together."""
    if document["kind"] == "EC2NodeClass":
        yield from (f"userData: {line}" for line in objections_to_user_data(document["spec"]["userData"]))
    if document["kind"] == "ClusterConfig":
        for group in document["managedNodeGroups"]:
            wanted = group["desiredCapacity"]
            if not group.get("minSize", wanted) <= wanted <= group.get("maxSize", wanted):
                yield f"{group['name']}: desiredCapacity is not between minSize and maxSize"
            if commands := group.get("preBootstrapCommands"):
                yield from (f"{group['name']}: {line}" for line in _commands(commands))


def _commands(commands: list[str]) -> Iterator[str]:
    settings, *rest = commands
    words = settings.split()
    if words[:1] != ["echo"] or words[-2:] != [">", SETTINGS_FILE]:
        yield f"the first of preBootstrapCommands does not write {SETTINGS_FILE}"
    else:
        yield from objections_to_settings(" ".join(words[1:-2]))
    yield from objections_to_commands("\n".join(rest))


def _text(judge: Callable[[str], Iterator[str]]) -> _Judge:
    return lambda path: judge(path.read_text())


_JUDGES: dict[str, _Judge] = {
    "boot/cloud-init.yaml": _text(objections_to_cloud_config),
    "eks/cloudformation.yaml": objections_to_template,
    "eks/cluster.yaml": _documents,
    "eks/karpenter.yaml": _documents,
    "eks/node-group.yaml": _documents,
    "eks/user-data.mime": _text(objections_to_user_data),
}
