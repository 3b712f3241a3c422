"""The MPS daemons and servers of a simulated machine as processes: on hardware they end with the machine."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


def end_mps(state: Path) -> None:
    """Kill this user's processes that serve the machine with that state file."""
    mine = f"TRANCHE_SIM_STATE={state}".encode()
    for entry in os.scandir("/proc"):
        # A process may end meanwhile, or belong to another user.
        with suppress(OSError):
            if not entry.name.isdigit():
                continue
            process = os.pidfd_open(int(entry.name))
            try:
                program = os.fsdecode(Path(entry.path, "cmdline").read_bytes()).partition("\0")[0]
                if Path(program).name in _PROGRAMS and mine in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)
