"""The control groups that limit the memory of shares: one for each, with a note in the state folder for whoever clears up.

The note is written before the group is made, and goes after it. A process that is killed leaves the note, and the next command
that decides anything takes limits and group away, once the share is over and nothing runs in the group.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tranche.core.allocation import Allocation, Part
from tranche.core.errors import HardwareError, TrancheError
from tranche.core.sharing import Sharing
from tranche.node.session import Places


class MemoryGroup(NamedTuple):
    """The group of one share, and the GPUs on which it has limits."""

    allocation_id: str
    folder: Path
    gpu_uuids: tuple[str, ...]


class MemoryGroups:
    """The groups of the shares of one machine."""

    def __init__(self, places: Places) -> None:
        self._notes = places.memory_groups

    def make(self, allocation: Allocation) -> MemoryGroup | None:
        """The group of an allocation with its limits in force and read back; None when it has no part that needs one."""
        parts = [each for each in allocation.grants if isinstance(each, Part) and each.sharing is Sharing.MEMORY_LIMITS]
        if not parts:
            return None
        from tranche.hardware.control_groups import make_group, own_group
        from tranche.hardware.memory_limits import limit_memory

        parent = own_group()
        if parent is None:
            raise HardwareError("there is no control group of version 2 to limit the memory of")
        group = MemoryGroup(allocation.id, parent / f"tranche-{allocation.id}", tuple(part.gpu_uuid for part in parts))
        self._note(group)
        try:
            make_group(group.folder)
            for part in parts:
                limit_memory(part.gpu_uuid, group.folder, soft=part.memory, hard=part.limit or part.memory)
        except TrancheError:
            self.drop(group)
            raise
        return group

    def left(self, living: Collection[str]) -> tuple[MemoryGroup, ...]:
        """The groups of allocations that are not among the living."""
        try:
            names = os.listdir(self._notes)
        except OSError:
            return ()
        found = []
        for name in sorted(set(names) - set(living)):
            # A note may go meanwhile, and what is no note is nobody's.
            with suppress(OSError, ValueError, KeyError, TypeError):
                note = json.loads((self._notes / name).read_text())
                found.append(MemoryGroup(name, Path(note["group"]), tuple(note["gpus"])))
        return tuple(found)

    def drop(self, group: MemoryGroup) -> bool:
        """Take the limits and the group away; False while something still runs in it."""
        from tranche.hardware.control_groups import populated, remove_group
        from tranche.hardware.memory_limits import lift_limit

        if populated(group.folder):
            return False
        if group.folder.is_dir():
            for gpu_uuid in group.gpu_uuids:
                with suppress(TrancheError):
                    lift_limit(gpu_uuid, group.folder)
        if not remove_group(group.folder):
            return False
        (self._notes / group.allocation_id).unlink(missing_ok=True)
        return True

    def _note(self, group: MemoryGroup) -> None:
        self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        note = {"group": str(group.folder), "gpus": list(group.gpu_uuids)}
        (self._notes / group.allocation_id).write_text(json.dumps(note))
