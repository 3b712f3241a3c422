"""Whether user data does what a node needs when it boots: its NodeConfig, its files, its script; a line for each objection."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import yaml

from release.closed_schemas import objections_to
from release.image_sources import version
from release.mime_parts import MimeBroken, MimePart, mime_parts
from tranche.boot.unit import SETTINGS_FILE, UNIT
from tranche.core.errors import PartitionInvalid
from tranche.core.partition import parse_boot_settings

_CLOUD_CONFIG, _SCRIPT, _NODE_CONFIG = "text/cloud-config", "text/x-shellscript", "application/node.eks.aws"


def objections_to_user_data(text: str) -> Iterator[str]:
    """What is wrong with a MIME document of user data."""
    try:
        parts = mime_parts(text)
    except MimeBroken as error:
        yield str(error)
        return
    for part in parts:
        yield from _objections_to_part(part)
    types = [part.type for part in parts]
    for needed in (_CLOUD_CONFIG, _SCRIPT):
        if needed not in types:
            yield f"no part is {needed}"


def objections_to_cloud_config(text: str) -> Iterator[str]:
    """What is wrong with a cloud-config."""
    if not text.startswith("#cloud-config\n"):
        yield "the first line is not '#cloud-config': cloud-init would not read it"
    data = _yaml(text)
    yield from objections_to(data, "cloud-config")
    files = data.get("write_files", []) if isinstance(data, dict) else []
    settings = [each for each in files if isinstance(each, dict) and each.get("path") == SETTINGS_FILE]
    if len(settings) != 1:
        yield f"it does not write {SETTINGS_FILE} once"
    for each in settings:
        yield from objections_to_settings(str(each.get("content", "")))
    commands = data.get("runcmd") if isinstance(data, dict) else None
    if isinstance(commands, list):
        yield from _objections_to_steps([[str(word) for word in each] for each in commands if isinstance(each, list)])


def objections_to_settings(text: str) -> Iterator[str]:
    """What is wrong with a file that says what to cut."""
    try:
        parse_boot_settings(text, SETTINGS_FILE)
    except PartitionInvalid as error:
        yield error.message


def objections_to_script(text: str) -> Iterator[str]:
    """What is wrong with a script that installs Tranche, the unit, and starts it."""
    if not text.startswith("#!/bin/bash\n"):
        yield "the script's first line is not '#!/bin/bash'"
    yield from objections_to_commands(text)


def objections_to_commands(text: str) -> Iterator[str]:
    """The same, of what is run by a shell that somebody else chooses."""
    bash = shutil.which("bash")
    if bash is not None:
        done = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
        yield from (f"bash: {line}" for line in done.stderr.splitlines())
    yield from _objections_to_installation([line.split() for line in text.replace("\\\n", " ").splitlines()])
    if f"tranche boot install && systemctl start --no-block {UNIT}" not in text:
        yield "it does not start the unit, without waiting, when that is installed"


def _objections_to_steps(commands: list[list[str]]) -> Iterator[str]:
    """What is wrong with commands that cloud-init runs one after the other, also after one that failed."""
    yield from _objections_to_installation(commands)
    if commands[-2:] != [["/opt/tranche/bin/tranche", "boot", "install"], ["systemctl", "start", "--no-block", UNIT]]:
        yield "it does not install the unit and start it, without waiting, in the end"


def _objections_to_installation(commands: list[list[str]]) -> Iterator[str]:
    """What is wrong with how pip is called: by a name alone, it takes what an index has under that name, whoever put it there."""
    installed = [
        word
        for words in commands
        if words[1:2] == ["install"] and words[0].endswith("/pip")
        for word in words[2:]
        if not word.startswith("-")
    ]
    wheel = f"tranche_gpu-{version()}-py3-none-manylinux_2_17_x86_64.whl"
    if not any(word.endswith(f"/{wheel}") for word in installed):
        yield f"it does not install {wheel}"
    yield from (f"it installs {word} by a name alone" for word in installed if "/" not in word)


def _objections_to_part(part: MimePart) -> Iterator[str]:
    match part.type:
        case "application/node.eks.aws":
            yield from (f"NodeConfig: {line}" for line in objections_to(_yaml(part.text), "NodeConfig"))
        case "text/cloud-config":
            yield from (f"cloud-config: {line}" for line in objections_to_cloud_config(part.text))
        case "text/x-shellscript":
            yield from objections_to_script(part.text)
        case _:
            yield f"neither cloud-init nor nodeadm knows parts of the type {part.type}"


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        return f"no YAML: {error}"
