"""Watches for programs of a share's command that use a device which is not the share's.

Only variables confine a program to its share, and sudo, `su -` and their like drop them: CUDA then offers every device. The
driver is asked only while the command has a process without them, or one whose environment this user may not read.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tranche.core.allocation import Allocation
from tranche.core.state import GpuProcess, GpuState, InstanceKey, NodeState
from tranche.local.side_thread import beside
from tranche.node.state.session import children_pids, sees_every_process

_LOOK_SECONDS = 5.0
_LONGEST_SECONDS = 60.0


@contextmanager
def watching_outside(
    allocation: Allocation,
    visible: str,
    observe: Callable[[], NodeState],
    outside: Callable[[GpuProcess, GpuState], None],
) -> Iterator[None]:
    """Call `outside`, from another thread and once, when a program of the command uses another device within the block.

    `visible` is the variable that confines the command, as the environment has it: NAME=VALUE.
    """
    # The driver's numbers of processes are the machine's: in a PID namespace they would be those of others.
    if not sees_every_process():
        yield
        return

    def watch(ended: int) -> None:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        seconds = _LOOK_SECONDS
        while not poll.poll(seconds * 1000):
            with suppress(Exception):  # a look that fails must not end the command, and is made again
                strays = _unconfined(os.getpid(), os.fsencode(visible))
                found = stray_use(allocation, strays, observe()) if strays else None
                if found is not None:
                    outside(*found)
                    return
                seconds = min(seconds * 2, _LONGEST_SECONDS) if strays else _LOOK_SECONDS

    with beside("outside", watch):
        yield


def stray_use(allocation: Allocation, pids: set[int], node: NodeState) -> tuple[GpuProcess, GpuState] | None:
    """One of the processes that uses a device of which the allocation has nothing, and the device's GPU; None when none does."""
    own = {(grant.gpu_uuid, grant.slot) for grant in allocation.grants}
    for gpu in node:
        used: list[tuple[InstanceKey | None, tuple[GpuProcess, ...]]] = [(None, gpu.processes)]
        if gpu.instances:
            used = [(gpu.key(instance), instance.processes) for instance in gpu.instances]
        for slot, processes in used:
            if (gpu.uuid, slot) not in own and (found := next((each for each in processes if each.pid in pids), None)):
                return found, gpu
    return None


def _unconfined(pid: int, variable: bytes) -> set[int]:
    """The descendants of a process that do not have the variable in their environment, or do not show it."""
    found: set[int] = set()
    for child in children_pids(pid):
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except PermissionError:
            environment = []
        except OSError:
            continue  # it has ended
        if variable not in environment:
            found.add(child)
        found |= _unconfined(child, variable)
    return found
