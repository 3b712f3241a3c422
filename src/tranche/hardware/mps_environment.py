"""What a client of an MPS daemon finds in its environment: where the daemon is, and how much of the device it may have."""

from __future__ import annotations

from typing import Final

from tranche.core.quantity import MIB

PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"


def client_environment(pipes: str, memory: int | None, percent: int | None) -> dict[str, str]:
    """The variables of a client of the daemon whose sockets lie in `pipes`; None sets no limit.

    A daemon's own limit is the largest share since it started, and what a client is told can only be less.
    """
    # A daemon shows its clients the one device that it serves, and calls it 0.
    limit = {} if memory is None else {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit_text(memory)}"}
    ceiling = {} if percent is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
    return {PIPES: pipes, **limit, **ceiling}


def limit_text(memory: int) -> str:
    """A limit as commands and variables take it: whole MiB, rounded down, of `memory` bytes."""
    return f"{memory // MIB}M"
