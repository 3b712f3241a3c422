"""Restarts the machine itself, for GPUs that take a MIG mode in no other way."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tranche.core.errors import HardwareError

_SECONDS = 60.0


def restart_machine(host_root: Path) -> None:
    """Run `reboot` of the system whose root is mounted there; HardwareError when it refuses. The machine goes down later."""
    try:
        done = subprocess.run(
            ["chroot", str(host_root), "reboot"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HardwareError(f"cannot restart the machine: {error}") from error
    if done.returncode != 0:
        said = " ".join((done.stdout + done.stderr).split())
        raise HardwareError(f"cannot restart the machine: reboot failed: {said}")
