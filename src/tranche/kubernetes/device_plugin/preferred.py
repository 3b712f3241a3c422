"""Which of the free devices a container had best get. Pure.

Slices are packed: on as few GPUs as possible, and on those with the least left, so that other GPUs stay empty and can be cut
differently. Whole GPUs are aligned: the set with the best links among its members, then among the GPUs that it leaves. Replicas
come from as few devices as possible, of the least or the most used, as the policy says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from math import comb

from tranche.kubernetes.device_plugin.settings import SharedPolicy
from tranche.kubernetes.node.resources import PluginDevice

Links = Mapping[frozenset[str], int]
"""How well two GPUs are linked, by the UUIDs of both; more is better."""

_MOST_SETS = 5_000


def preferred(
    available: Sequence[PluginDevice],
    required: Sequence[str],
    size: int,
    links: Links,
    policy: SharedPolicy = SharedPolicy.DISTRIBUTED,
) -> tuple[str, ...]:
    """`size` ids of the available devices, including the required ones; fewer when not enough are available.

    Drops required devices that are not available: the kubelet takes the answer as advice.
    """
    devices = sorted({device.id: device for device in available}.values(), key=lambda device: device.position)
    must = [device for device in devices if device.id in set(required)][:size]
    free = [device for device in devices if device.id not in set(required)]
    count = min(size - len(must), len(free))
    if count <= 0:
        chosen: list[PluginDevice] = []
    elif any(device.replica is not None for device in devices):
        chosen = _shared(free, must, count, policy)
    elif all(device.piece is None for device in devices):
        chosen = _aligned(free, must, count, links)
    else:
        chosen = _packed(free, must, count)
    return tuple(device.id for device in (*must, *chosen))


def _shared(
    free: Sequence[PluginDevice], must: Sequence[PluginDevice], count: int, policy: SharedPolicy
) -> list[PluginDevice]:
    by_device: dict[str, list[PluginDevice]] = {}
    for device in free:
        by_device.setdefault(device.uuid, []).append(device)
    entered = {device.uuid for device in must}
    used = {uuid: 1 - Fraction(len(left), left[0].replicas) for uuid, left in by_device.items()}
    sign = -1 if policy is SharedPolicy.PACKED else 1
    chosen: list[PluginDevice] = []
    while len(chosen) < count:
        wanted = count - len(chosen)

        def cost(uuid: str, wanted: int = wanted) -> tuple[bool, bool, int, Fraction, tuple[int, ...]]:
            room = len(by_device[uuid])
            short = room < wanted
            return (uuid not in entered, short, -room if short else 0, sign * used[uuid], by_device[uuid][0].position)

        best = min(by_device, key=cost)
        chosen += by_device.pop(best)[:wanted]
    return chosen


def _packed(free: Sequence[PluginDevice], must: Sequence[PluginDevice], count: int) -> list[PluginDevice]:
    by_gpu: dict[int, list[PluginDevice]] = {}
    for device in free:
        by_gpu.setdefault(device.gpu.index, []).append(device)
    entered = {device.gpu.index for device in must}
    chosen: list[PluginDevice] = []
    while len(chosen) < count:
        wanted = count - len(chosen)

        def cost(index: int, wanted: int = wanted) -> tuple[bool, bool, int, int]:
            room = len(by_gpu[index])
            return (index not in entered, room < wanted, room if room >= wanted else -room, index)

        best = min(by_gpu, key=cost)
        chosen += by_gpu.pop(best)[:wanted]
    return chosen


def _aligned(
    free: Sequence[PluginDevice], must: Sequence[PluginDevice], count: int, links: Links
) -> list[PluginDevice]:
    if comb(len(free), count) > _MOST_SETS:
        return _aligned_step_by_step(free, must, count, links)

    def worth(chosen: tuple[PluginDevice, ...]) -> tuple[int, int]:
        rest = [device for device in free if device not in chosen]
        return (_together((*must, *chosen), links), _together(rest, links))

    # max() keeps the first of equals: the one with the lowest indexes.
    best: tuple[PluginDevice, ...] = max(combinations(free, count), key=worth)
    return list(best)


def _aligned_step_by_step(
    free: Sequence[PluginDevice], must: Sequence[PluginDevice], count: int, links: Links
) -> list[PluginDevice]:
    """For machines with so many GPUs that trying all sets would take too long."""
    chosen: list[PluginDevice] = []
    while len(chosen) < count:
        left = [device for device in free if device not in chosen]
        chosen.append(max(left, key=lambda device: _together((*must, *chosen, device), links)))
    return chosen


def _together(devices: Sequence[PluginDevice], links: Links) -> int:
    """The sum over all pairs."""
    return sum(links.get(frozenset((a.gpu.uuid, b.gpu.uuid)), 0) for a, b in combinations(devices, 2))
