"""Why a request waits, in short: one clause for GPUs with the same kind of obstacle, with share counts by owner."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tranche.documents.describe import ranges
from tranche.documents.holder_names import NameTable
from tranche.planning.decide.allocate import Waiting
from tranche.planning.decide.obstacle import Obstacle, Reason

_HELD = {
    Reason.GPU_BUSY: "are held",
    Reason.NO_ROOM: "have no room for it",
    Reason.FRAGMENTED: "have no room for it in one piece",
}
"""The obstacles made by shares or processes."""

_LOST = "lost: the driver cannot reach them"
_NAMED_AT_MOST = 2
_OWNERS_AT_MOST = 4
_ID = re.compile(r"\b[0-9a-f]{8}\b")


def summed_up(waiting: Waiting, names: NameTable) -> str:
    """What blocks a request: `all 8 GPUs are held: ada has 14 shares, bob 8`."""
    groups: dict[str, list[Obstacle]] = {}
    for each in waiting.obstacles:
        users = each.allocation_ids or each.processes
        words = _LOST if each.reason is Reason.GPU_LOST else each.text
        groups.setdefault(_HELD.get(each.reason, words) if users else words, []).append(each)
    total = sum(map(_count, waiting.obstacles)) + waiting.unnamed + waiting.ready
    clauses = [_clause(words, group, total, names) for words, group in groups.items()]
    if waiting.unnamed:
        clauses.append(f"and {waiting.unnamed:,} more GPUs")
    return "; ".join(clauses)


def named(text: str, names: NameTable) -> str:
    """The text with names and users of shares before their ids."""
    return _ID.sub(lambda found: names.called.get(found[0], found[0]), text)


def shares_of(ids: Sequence[str], names: NameTable) -> str:
    """A few shares by name, or else how many each owner has, most first: `ada has 14 shares, bob 8`."""
    return ", ".join(names.called.get(id, id) for id in ids) if len(ids) <= _NAMED_AT_MOST else _by_owner(ids, names)


def _clause(words: str, group: Sequence[Obstacle], total: int, names: NameTable) -> str:
    count = sum(map(_count, group))
    if group[0].reason is Reason.QUOTA and count == total:
        return words  # it is about the user, not about a GPU
    if len(group) == 1:
        return named(str(group[0]), names)
    which = f"GPUs {ranges(each.gpu_index for each in group)}" if count == len(group) else f"{count:,} GPUs"
    which = f"all {count:,} GPUs" if count == total else which
    if words == _LOST:
        return f"{which} are {words}"
    if words not in _HELD.values():
        return f"{which}: {named(words, names)}"
    return f"{which} {words}: {_users(group, names)}"


def _count(each: Obstacle) -> int:
    return 1 + each.alike


def _users(group: Sequence[Obstacle], names: NameTable) -> str:
    """The users in the way."""
    ids = list(dict.fromkeys(id for each in group for id in each.allocation_ids))
    processes = list(dict.fromkeys(each for some in group for each in some.processes if not some.allocation_ids))
    said = [shares_of(ids, names)] if ids else []
    if len(processes) <= _NAMED_AT_MOST:
        return ", ".join([*said, *map(str, processes)])
    return ", ".join([*said, f"{len(processes)} processes outside Tranche"])


def _by_owner(ids: Sequence[str], names: NameTable) -> str:
    most = Counter(names.owners[id].name for id in ids if id in names.owners).most_common()
    if not most:
        return f"{len(ids)} shares"
    said = [
        f"{name} {count}" if place else f"{name} has {count} share{'s' if count > 1 else ''}"
        for place, (name, count) in enumerate(most)
    ]
    others = len(ids) - sum(count for _, count in most[:_OWNERS_AT_MOST])
    return ", ".join(said[:_OWNERS_AT_MOST] + ([f"others {others}"] if others else []))
