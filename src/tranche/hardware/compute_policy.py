"""The driver's compute policy of a GPU: the length of time slices. Only nvidia-smi knows it; NVML has no call for it."""

from __future__ import annotations

import re
import subprocess
from typing import Final

from tranche.core.errors import HardwareError
from tranche.core.sharing import Timeslice

_SECONDS: Final = 60.0
_LENGTH: Final = re.compile(rf"Timeslice\W+({'|'.join(Timeslice)})\b", re.IGNORECASE)
"""Fits both forms that nvidia-smi is known to print: `GPU  0: Timeslice: Default`, and a line of a table."""


def read_timeslice(nvidia_smi: str, gpu_uuid: str) -> Timeslice:
    """The length on that GPU; HardwareError if nvidia-smi does not report it."""
    said = _run([nvidia_smi, "compute-policy", "-i", gpu_uuid, "--list"], f"read the time slice of {gpu_uuid}")
    found = _LENGTH.findall(said)
    if len(found) != 1:
        raise HardwareError(f"cannot read the time slice of {gpu_uuid}: nvidia-smi said: {said[:200]}")
    return Timeslice(found[0].lower())


def set_timeslice(nvidia_smi: str, gpu_uuid: str, length: Timeslice) -> None:
    """Set the length on that GPU, until the driver is unloaded; HardwareError if nvidia-smi refuses."""
    command = [nvidia_smi, "compute-policy", "-i", gpu_uuid, f"--set-timeslice={length.number}"]
    _run(command, f"set the time slice of {gpu_uuid} to {length}")


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HardwareError(f"cannot {what}: {error}") from error
    said = " ".join((done.stdout + done.stderr).split())
    if done.returncode != 0:
        raise HardwareError(f"cannot {what}: nvidia-smi said: {said}")
    return said
