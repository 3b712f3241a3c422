"""How much of the machine this process sees, and whether a container's process meets the same machine."""

from __future__ import annotations

import os
import re

from tranche.core.state import DeviceVisibility

VARIABLE = "NVIDIA_VISIBLE_DEVICES"

_WHOLE = re.compile(r"\d+|GPU-[0-9a-fA-F-]+|none|")


def scope_of(value: str | None) -> DeviceVisibility:
    """What that value of the variable shows; a list of slices, a folder of names and `void` do not say what else exists."""
    words = [] if value is None else [word.strip() for word in value.split(",")]
    if not words or words == ["all"]:
        return DeviceVisibility.ALL
    return DeviceVisibility.GPUS if all(map(_WHOLE.fullmatch, words)) else DeviceVisibility.PARTS


STATE_IN_CONTAINER = "/run/tranche/simulator/state"
"""Where a container finds the state of its simulated machine."""


def meets_this_machine(pid: int) -> bool:
    """True if this process meets real GPUs; else whether that process's container has the same simulated machine."""
    state = os.environ.get("TRANCHE_SIM_STATE")
    if not state:
        return True
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root{STATE_IN_CONTAINER}"), os.stat(state))
    except OSError:
        return False
