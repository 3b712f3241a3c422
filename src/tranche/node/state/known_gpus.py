"""Remembers which GPU a machine has at which index, for when the driver cannot tell.

A lost GPU may have no UUID, name or bus id. It is the one last seen at its index, if the machine has not restarted since and
every other GPU is still in its place: then no card was moved.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from tranche.core.errors import TrancheError
from tranche.core.state import DeviceVisibility, GpuState, NodeState
from tranche.node.state.session import StateFolder, boot_id
from tranche.node.state.state_file import read_state_file, write_output

_LIMIT = 2**20


class _KnownGpu(NamedTuple):
    """The identity of a GPU, independent of its instances and processes."""

    uuid: str
    name: str
    pci_bus_id: str
    pci_device_id: str
    pci_subsystem_id: str
    architecture: str
    minor: int | None


def with_lost_named(node: NodeState, places: StateFolder, *, remember: bool) -> NodeState:
    """The node with its lost GPUs named as last seen. Only a view of the whole machine has its indexes.

    `remember`: this process may record what it sees.
    """
    if node.scope is not DeviceVisibility.ALL:
        return node
    if any(gpu.lost for gpu in node):
        return _recalled(node, _read(places))
    if remember and (now := {gpu.index: _known(gpu) for gpu in node}) and now != _read(places):
        data = {"boot": boot_id(), "gpus": [{"index": index, **each._asdict()} for index, each in now.items()]}
        with suppress(OSError):  # reading must still succeed
            write_output(places.known_gpus, json.dumps(data).encode())
    return node


def lost_or_back(node: NodeState, recorded: Collection[str], working: Collection[str]) -> tuple[GpuState, ...]:
    """The GPUs that were lost, or have returned, since the UUIDs of lost GPUs were `recorded`.

    Leaves out GPUs that a plan is `working` on, and that cannot be told from others.
    """
    if node.scope is not DeviceVisibility.ALL:
        return ()
    known = (gpu for gpu in node if not gpu.nameless and gpu.uuid not in working)
    return tuple(gpu for gpu in known if gpu.lost is not (gpu.uuid in recorded))


def _recalled(node: NodeState, known: Mapping[int, _KnownGpu]) -> NodeState:
    here = [gpu.index for gpu in node if not gpu.nameless]
    if any(index not in known or known[index].uuid != node.by_index(index).uuid for index in here):
        return node
    return replace(node, gpus=tuple(_named(gpu, known.get(gpu.index)) if gpu.lost else gpu for gpu in node))


def _named(gpu: GpuState, known: _KnownGpu | None) -> GpuState:
    return gpu if known is None else replace(gpu, **known._asdict())


def _known(gpu: GpuState) -> _KnownGpu:
    return _KnownGpu(*(getattr(gpu, name) for name in _KnownGpu._fields))


def _read(places: StateFolder) -> dict[int, _KnownGpu]:
    """The GPU seen at each index since the machine started; empty when the file is unreadable."""
    try:
        data = json.loads(read_state_file(places.known_gpus, limit=_LIMIT))
        if data["boot"] != boot_id():
            return {}
        return {each.pop("index"): _KnownGpu(**each) for each in data["gpus"]}
    except (OSError, TrancheError, ValueError, TypeError, KeyError, AttributeError):
        return {}
