"""What must be written so that a node's pool shows what it shall: as few writes as keep the pool whole. Pure.

A pool counts for the scheduler when as many slices of its newest generation are there as each of them says. A slice that is
written anew, or that somebody deleted, is written in the same generation, so that one write makes the pool whole. Only another
number of slices, or what is not ours, begins a new generation, of which every slice is written.
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
    """The node, by whose end its slices go."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class SliceUpdate:
    """What is to be written, in that order: slices that are not there, slices in the place of what is there, and removals."""

    generation: int
    create: tuple[NodeSlice, ...] = ()
    replace: tuple[NodeSlice, ...] = ()
    remove: tuple[NodeSlice, ...] = ()

    @property
    def count(self) -> int:
        """How many requests that is."""
        return len(self.create) + len(self.replace) + len(self.remove)


def slice_writes(
    wanted: Sequence[PoolSlice], known: Sequence[NodeSlice], owner: SliceOwner, generation: int = 0
) -> SliceUpdate:
    """What turns the slices that are known into the wanted ones. `generation` is the newest that was ever seen."""
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
    """Most are the same to the letter, which is quick to see."""
    return len(made) == len(before) and all(
        one == other or plain(one) == plain(other) for one, other in zip(made, before, strict=True)
    )
