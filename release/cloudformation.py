"""Whether CloudFormation would take a template, by cfn-lint, which knows all resources offline; and its user data."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from release.errors import ReleaseError
from release.image_sources import ROOT
from release.progress import say_beside
from release.tool_environment import tool_environment
from release.user_data import objections_to_user_data
from tranche_simulator.build import cache_directory

_LOCK = ROOT / "requirements-infrastructure.lock"
_REGION = "us-west-2"
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


def objections_to_template(path: Path) -> Iterator[str]:
    """What cfn-lint says, and what is wrong with the user data of the template's launch templates.

    Raises:
        ReleaseError: cfn-lint cannot be had, or does not work.
    """
    yield from _lint(path)
    template = yaml.load(path.read_text(), Loader=_Loader)
    defaults = {name: str(each.get("Default", "x")) for name, each in template.get("Parameters", {}).items()}
    for name, resource in template.get("Resources", {}).items():
        if resource.get("Type") != "AWS::EC2::LaunchTemplate":
            continue
        text = resource["Properties"]["LaunchTemplateData"].get("UserData")
        if not isinstance(text, dict) or not isinstance(text.get("Fn::Sub"), str):
            yield f"{name}: its user data is not Fn::Base64 of Fn::Sub"
            continue
        filled = _PLACEHOLDER.sub(lambda match: defaults.get(match[1], match[0]), text["Fn::Sub"])
        yield from (f"{name}: user data: {line}" for line in objections_to_user_data(filled.rstrip("\n") + "\n"))


def _lint(path: Path) -> Iterator[str]:
    programs = tool_environment(
        _LOCK,
        cache_directory() / "infrastructure-tools",
        "fetching cfn-lint, 180 MB",
        say_beside,
    )
    command = [str(programs / "cfn-lint"), "--format", "parseable", "--regions", _REGION, "--", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.removeprefix(f"{path}:") for line in done.stdout.splitlines() if line]
    if done.returncode != 0 and not lines:
        raise ReleaseError(f"cfn-lint does not work: {done.stderr.strip()[-1000:]}")
    yield from lines


class _Loader(yaml.SafeLoader):
    """CloudFormation's short forms: `!Sub x` is the mapping Fn::Sub, `!Ref x` a mapping too."""


def _short_form(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        content: Any = loader.construct_mapping(node, deep=True)
    elif isinstance(node, yaml.SequenceNode):
        content = loader.construct_sequence(node, deep=True)
    else:
        content = node.value
    return content if suffix == "Base64" else {"Ref" if suffix == "Ref" else f"Fn::{suffix}": content}


_Loader.add_multi_constructor("!", _short_form)
