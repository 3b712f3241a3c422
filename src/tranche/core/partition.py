"""How to cut a machine's GPUs at boot: the settings file and its MIG_PARTITION. Pure text, no GPU.

MIG_PARTITION is the argument of `nvidia-smi mig -cgi`: comma-separated profile numbers or names, one for each slice of every GPU.
`7*19` stands for seven times 19. Any other word names a layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tranche.core.errors import PartitionInvalid, UsageError
from tranche.core.profile import ProfileName, parse_profile

PARTITION = "MIG_PARTITION"
CONFIG_FILE = "MIG_PARTED_CONFIG_FILE"

_MOST_SLICES = 1000  # far more than any GPU has
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.ASCII)
_ELEMENT = re.compile(r"(?:(?P<count>\d{1,9})\s*\*\s*)?(?P<profile>\S+)", re.ASCII)
_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
_PLACED = re.compile(r"(?P<profile>[^:]+):\d+", re.ASCII)
_LAYOUT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._+-]*", re.ASCII)
_EXAMPLES = "for example 19,19,19,19,19,19,19 or 7*1g.5gb or all-1g.5gb"

WantedProfile = int | ProfileName
"""A profile by nvidia-smi's number, or by name."""


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The slices for every GPU, each profile with its count, as written."""

    text: str
    slices: tuple[tuple[WantedProfile, int], ...]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class BootSettings:
    """Settings for boot: slices, or a layout by name. `config_file` is the path of the layout file, "" for none."""

    wanted: PartitionSpec | str
    config_file: str = ""


def parse_boot_settings(text: str, source: str) -> BootSettings:
    """Parse a file in systemd's EnvironmentFile form; raises PartitionInvalid with the line.

    Lines are `NAME=value`, with the value bare or quoted. Ignores empty lines and those that begin with `#` or `;`. The last
    assignment of a name wins. Nothing is expanded.
    """
    values: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            raise PartitionInvalid(
                f"{source}, line {number} is not an assignment: {line}", hint=f"write {PARTITION}=19,19,19,19,19,19,19"
            )
        values[match["name"]] = _unquoted(match["value"].strip(), f"{source}, line {number}")
    if PARTITION not in values:
        raise PartitionInvalid(
            f"{source} does not set {PARTITION}",
            hint=(f"it has {', '.join(sorted(values))}; " if values else "") + f"add {PARTITION}=..., {_EXAMPLES}",
        )
    try:
        wanted = parse_partition(values[PARTITION])
    except PartitionInvalid as error:
        raise PartitionInvalid(f"{source}: {error.message}", hint=error.hint) from error
    return BootSettings(wanted, values.get(CONFIG_FILE, ""))


def parse_partition(text: str) -> PartitionSpec | str:
    """Parse the value of MIG_PARTITION, to slices or a layout's name; raises PartitionInvalid with the broken rule."""
    value = text.strip()
    if not value:
        raise PartitionInvalid(
            f"{PARTITION} is empty", hint=f"{_EXAMPLES}; to leave the GPUs unchanged at boot, remove the file"
        )
    if _LAYOUT_NAME.fullmatch(value):
        return value
    counts: dict[WantedProfile, int] = {}
    for element in value.split(","):
        profile, count = _element(element.strip(), value)
        counts[profile] = counts.get(profile, 0) + count
    if sum(counts.values()) > _MOST_SLICES:
        raise PartitionInvalid(
            f"{PARTITION}={value} asks for {sum(counts.values())} slices: no GPU has room for that many"
        )
    return PartitionSpec(value, tuple(counts.items()))


def _element(text: str, value: str) -> tuple[WantedProfile, int]:
    where = f"in {PARTITION}={value}"
    if not text:
        raise PartitionInvalid(f"a profile is missing {where}", hint="remove the extra comma")
    match = _ELEMENT.fullmatch(text)
    if match is None:
        raise PartitionInvalid(f"'{text}' {where} is not a profile", hint=_EXAMPLES)
    count = 1 if match["count"] is None else int(match["count"])
    if count == 0:
        raise PartitionInvalid(f"'{text}' {where} asks for zero slices", hint="a count must be at least 1")
    if placed := _PLACED.fullmatch(match["profile"]):
        raise PartitionInvalid(
            f"'{text}' {where} names a placement",
            hint=f"Tranche chooses the placements so that all slices fit: write {placed['profile']}",
        )
    if _NUMBER.fullmatch(match["profile"]):
        return int(match["profile"]), count
    try:
        return parse_profile(match["profile"]), count
    except UsageError as error:
        raise PartitionInvalid(f"{where}: {error.message}", hint=error.hint or _EXAMPLES) from error


def _unquoted(value: str, where: str) -> str:
    for quote in ("'", '"'):
        if value.startswith(quote) or value.endswith(quote):
            if len(value) < 2 or not (value.startswith(quote) and value.endswith(quote)):
                raise PartitionInvalid(f"{where}: a quote has no end: {value}", hint="close it, or remove the quotes")
            return value[1:-1]
    return value
