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
from typing import Final, NamedTuple

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.errors import HardwareError, TrancheError
from tranche.core.sharing import Sharing
from tranche.node.state.session import StateFolder, boot_id

_NAME: Final = "tranche-"


class MemoryGroup(NamedTuple):
    """The group of one share, and the GPUs on which it has limits.

    `namespace` is the control group namespace in which its path holds, `boot` the start of the machine that it belongs to; each
    is "" where it is not known.
    """

    allocation_id: str
    folder: Path
    gpu_uuids: tuple[str, ...]
    namespace: str = ""
    boot: str = ""


class MemoryGroupManager:
    """The groups of the shares of one machine."""

    def __init__(self, places: StateFolder) -> None:
        self._register = places.state_dir
        self._notes = places.memory_groups

    def make(self, allocation: Allocation) -> MemoryGroup | None:
        """The group of an allocation with its limits in force and read back; None when it has no part that needs one."""
        parts = [
            each
            for each in allocation.grants
            if isinstance(each, FractionalShare) and each.sharing is Sharing.MEMORY_LIMITS
        ]
        if not parts:
            return None
        from tranche.hardware.control_groups import group_namespace, make_group, mark_group, own_group
        from tranche.hardware.memory_limits import limit_memory, verify_limit

        parent = own_group()
        if parent is None:
            raise HardwareError("there is no control group of version 2 to limit the memory of")
        group = MemoryGroup(
            allocation.id,
            parent / f"{_NAME}{allocation.id}",
            tuple(part.gpu_uuid for part in parts),
            group_namespace(),
            boot_id(),
        )
        self._note(group)
        limited: list[str] = []
        try:
            make_group(group.folder)
            mark_group(group.folder, os.path.realpath(self._register))
            for part in parts:
                limit_memory(part.gpu_uuid, group.folder, soft=part.memory, hard=part.memory)
                limited.append(part.gpu_uuid)
                verify_limit(part.gpu_uuid, group.folder, soft=part.memory, hard=part.memory)
        except TrancheError as error:
            error.gpu_uuid = parts[min(len(limited), len(parts) - 1)].gpu_uuid
            begun = group._replace(gpu_uuids=tuple(limited))
            self._note(begun)
            self.drop(begun)
            raise
        return group

    def strays(self) -> tuple[Path, ...]:
        """The groups that were made for shares of this register, and have no note: it was lost with the state folder."""
        from tranche.hardware.control_groups import marked_groups

        found = marked_groups(os.path.realpath(self._register))
        return tuple(each for each in found if not (self._notes / each.name.removeprefix(_NAME)).exists())

    def find_again(self, gpu_uuids: Collection[str]) -> None:
        """Note the groups anew whose notes were lost, each with those of the GPUs on which it has limits."""
        from tranche.hardware.control_groups import group_namespace
        from tranche.hardware.memory_limits import has_limit

        for folder in self.strays():
            limited = tuple(each for each in gpu_uuids if has_limit(each, folder))
            name = folder.name.removeprefix(_NAME)
            self._note(MemoryGroup(name, folder, limited, group_namespace(), boot_id()))

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
                words = str(note.get("namespace", "")), str(note.get("boot", ""))
                found.append(MemoryGroup(name, Path(note["group"]), tuple(note["gpus"]), *words))
        return tuple(found)

    def drop(self, group: MemoryGroup) -> bool:
        """Take the limits and the group away, and then the note; whether all of it is gone.

        Group and note stay while something may run in the group, while the driver does not lift a limit of a GPU that answers,
        and while it cannot be seen from here whether the group is there.
        """
        from tranche.hardware.control_groups import populated, remove_group

        if not _ended(group) and (populated(group.folder) or not _lifted(group) or not remove_group(group.folder)):
            return False
        (self._notes / group.allocation_id).unlink(missing_ok=True)
        return True

    def _note(self, group: MemoryGroup) -> None:
        self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        note = {
            "group": str(group.folder),
            "gpus": list(group.gpu_uuids),
            "namespace": group.namespace,
            "boot": group.boot,
        }
        (self._notes / group.allocation_id).write_text(json.dumps(note))


def _ended(group: MemoryGroup) -> bool:
    """Whether the group is no more: it ended with the machine, or somebody removed it."""
    from tranche.hardware.control_groups import group_namespace, is_gone

    if group.boot not in ("", boot_id()) and boot_id():
        return True
    if group.namespace not in ("", group_namespace()):
        return False
    return is_gone(group.folder, same_namespace=bool(group.namespace))


def _lifted(group: MemoryGroup) -> bool:
    """Take the group's limits away, each that can be; whether none is left."""
    from tranche.hardware.memory_limits import lift_limit

    left = False
    for gpu_uuid in group.gpu_uuids:
        try:
            lift_limit(gpu_uuid, group.folder)
        except TrancheError:
            left = True
    return not left
