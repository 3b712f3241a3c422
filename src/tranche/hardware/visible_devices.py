"""What a process is shown of the machine, by NVIDIA_VISIBLE_DEVICES, which `tranche run` and container runtimes set."""

from __future__ import annotations

import re
from enum import StrEnum

VARIABLE = "NVIDIA_VISIBLE_DEVICES"

_WHOLE = re.compile(r"\d+|GPU-[0-9a-fA-F-]+|none|")


class DeviceVisibility(StrEnum):
    """How much of the machine is shown. ALL: everything. GPUS: some GPUs, each with all that is on it. PARTS: less than that."""

    ALL = "all"
    GPUS = "gpus"
    PARTS = "parts"


def scope_of(value: str | None) -> DeviceVisibility:
    """What that value of the variable shows; a list of slices, a folder of names and `void` do not say what else is there."""
    words = [] if value is None else [word.strip() for word in value.split(",")]
    if not words or words == ["all"]:
        return DeviceVisibility.ALL
    return DeviceVisibility.GPUS if all(map(_WHOLE.fullmatch, words)) else DeviceVisibility.PARTS
