"""Watches how much of a device's memory a share's processes have together, for as long as the share's command runs."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState
from tranche.local.side_thread import beside
from tranche.node.limits.overdrawn import excess

_LOOK_SECONDS = 5.0


@contextmanager
def watching_use(
    allocation: Allocation, observe: Callable[[str], GpuState], above: Callable[[FractionalShare, GpuState, int], None]
) -> Iterator[None]:
    """Call `above`, from another thread and once, when more of a part's device is used within the block than was given.

    It is told the part, its GPU, and how many bytes are used.
    """
    parts = [
        each
        for each in allocation.grants
        if isinstance(each, FractionalShare) and each.sharing is not Sharing.TIME_SLICING
    ]
    if not parts:
        yield
        return

    def watch(ended: int) -> None:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        while not poll.poll(_LOOK_SECONDS * 1000):
            with suppress(Exception):  # a look that fails must not end the command, and is made again
                for part in parts:
                    gpu = observe(part.gpu_uuid)
                    if used := excess(allocation, part, gpu):
                        above(part, gpu, used)
                        return

    with beside("use", watch):
        yield
