"""The writes that make a node's pool show what it shall: as few as keep the pool complete. Pure.

For the scheduler, a pool is complete when its newest generation has as many slices as each of them says. A slice that was
changed, or that somebody deleted, is written in the same generation, so that one write completes the pool. Only a new number of
slices, or a foreign slice, begins a new generation, in which every slice is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.resource_slices import NodeSlice
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.dra.pool import PoolSlice, plain, with_times


@dataclass(frozen=True, slots=True)
class SliceOwner:
    """The node whose end removes its slices."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class SliceUpdate:
    """The writes, in this order: missing slices, replacements for existing ones, and removals."""

    generation: int
    create: tuple[NodeSlice, ...] = ()
    replace: tuple[NodeSlice, ...] = ()
    remove: tuple[NodeSlice, ...] = ()

    @property
    def count(self) -> int:
        """The number of requests."""
        return len(self.create) + len(self.replace) + len(self.remove)


def slice_writes(
    wanted: Sequence[PoolSlice], known: Sequence[NodeSlice], owner: SliceOwner, generation: int = 0
) -> SliceUpdate:
    """The writes that turn the known slices into the wanted ones. `generation` is the newest ever seen."""
    names = {each.name: each for each in known}
    standing = {(each.generation, each.count) for each in known}
    newest = max([generation, *(each.generation for each in known)])
    whole = standing == {(newest, len(wanted))} and names.keys() <= {each.name for each in wanted}
    number = newest if whole else newest + 1
    create, replace = [], []
    for content in wanted:
        before = names.get(content.name)
        made = _made(content, before, owner, number, len(wanted))
        if before is None:
            create.append(made)
        elif not _same(made, before):
            replace.append(made)
    gone = {each.name for each in wanted}
    return SliceUpdate(number, tuple(create), tuple(replace), tuple(each for each in known if each.name not in gone))


def _made(content: PoolSlice, before: NodeSlice | None, owner: SliceOwner, generation: int, count: int) -> NodeSlice:
    shown = {} if before is None else {str(each["name"]): each for each in before.devices}
    devices = tuple(with_times(each, shown.get(str(each["name"]), {})) for each in content.devices)
    return NodeSlice(
        name=content.name,
        driver=DRIVER,
        pool=owner.name,
        node=owner.name,
        generation=generation,
        count=count,
        devices=devices,
        counters=content.counters,
        owner_node=(owner.name, owner.uid),
        version="" if before is None else before.version,
    )


def _same(made: NodeSlice, before: NodeSlice) -> bool:
    def rest(each: NodeSlice) -> tuple[object, ...]:
        return (each.driver, each.pool, each.node, each.generation, each.count, each.owner_node)

    return (
        rest(made) == rest(before) and _alike(made.devices, before.devices) and _alike(made.counters, before.counters)
    )


def _alike(made: Sequence[Json], before: Sequence[Json]) -> bool:
    """Whether both mean the same. Most are identical, which is quick to check."""
    return len(made) == len(before) and all(
        one == other or plain(one) == plain(other) for one, other in zip(made, before, strict=True)
    )
