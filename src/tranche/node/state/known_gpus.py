"""Which GPU a machine has at which index, remembered for the time when the driver cannot tell.

A GPU that the driver has lost may be left without UUID, name and bus id. It is the one that was seen at its index, where the
machine has not been started since and every other GPU still is where it was: then no card was moved.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace

from tranche.core.errors import TrancheError
from tranche.core.state import GpuState, NodeState
from tranche.node.state.session import StateFolder, boot_id
from tranche.node.state.state_file import read_state_file, write_output

_LIMIT = 2**20


@dataclass(frozen=True, slots=True)
class _KnownGpu:
    """Who a GPU is, whatever is on it."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    pci_device_id: str
    pci_subsystem_id: str
    architecture: str
    minor: int | None


def with_lost_named(node: NodeState, places: StateFolder, *, whole: bool, remember: bool) -> NodeState:
    """The node with its lost GPUs named as they were seen last; only a view of the `whole` machine has its indexes.

    `remember`: this process may write down what it sees.
    """
    if not whole:
        return node
    if any(gpu.lost for gpu in node):
        return _recalled(node, _read(places))
    if remember and (now := tuple(map(_known, node))) and now != _read(places):
        data = {"boot": boot_id(), "gpus": [asdict(each) for each in now]}
        with suppress(OSError):  # who looks gets an answer all the same
            write_output(places.known_gpus, json.dumps(data).encode())
    return node


def _recalled(node: NodeState, known: Sequence[_KnownGpu]) -> NodeState:
    by_index = {each.index: each for each in known}
    here = [gpu.index for gpu in node if not gpu.nameless]
    if any(index not in by_index or by_index[index].uuid != node.by_index(index).uuid for index in here):
        return node
    return replace(node, gpus=tuple(_named(gpu, by_index.get(gpu.index)) if gpu.lost else gpu for gpu in node))


def _named(gpu: GpuState, known: _KnownGpu | None) -> GpuState:
    return gpu if known is None else replace(gpu, **asdict(known))


def _known(gpu: GpuState) -> _KnownGpu:
    return _KnownGpu(*(getattr(gpu, each.name) for each in fields(_KnownGpu)))


def _read(places: StateFolder) -> tuple[_KnownGpu, ...]:
    """What was seen since the machine was started; nothing where that cannot be read."""
    try:
        data = json.loads(read_state_file(places.known_gpus, limit=_LIMIT))
        if data["boot"] != boot_id():
            return ()
        return tuple(_KnownGpu(**each) for each in data["gpus"])
    except (OSError, TrancheError, ValueError, TypeError, KeyError):
        return ()
