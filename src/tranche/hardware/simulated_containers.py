"""Whether a container's process meets the GPUs of this machine: simulated machines with the same name share UUIDs."""

from __future__ import annotations

import os

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
