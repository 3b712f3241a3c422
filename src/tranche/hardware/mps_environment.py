"""The environment of an MPS daemon's client: where the daemon is, and how much of the device the client may use."""

from __future__ import annotations

from typing import Final

from tranche.core.quantity import MIB

PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"


def client_environment(pipes: str, memory: int | None, percent: int | None) -> dict[str, str]:
    """The variables of a client of the daemon whose sockets lie in `pipes`; None sets no limit.

    A daemon's own limit is the largest share since it started; a client's limit can only be lower.
    """
    # A daemon shows its clients only the device it serves, and calls it 0.
    limit = {} if memory is None else {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit_text(memory)}"}
    ceiling = {} if percent is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
    return {PIPES: pipes, **limit, **ceiling}


def limit_text(memory: int) -> str:
    """`memory` bytes as commands and variables write a limit: whole MiB, rounded down."""
    return f"{memory // MIB}M"
