"""Whole GPUs and slices as metrics see them: each with its state, its reading and the pod that has it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tranche.core.allocation import Allocation, ComputeSlice, NodeView, Phase
from tranche.core.keeper import PodKeeper
from tranche.core.readings import GpuReading, SliceReading
from tranche.core.state import ComputeInstance, GpuState
from tranche.documents.slices import SliceRow, slices_on, whole_holders

_NO_POD = {"namespace": "", "pod": "", "container": ""}


class _DeviceState(StrEnum):
    """CUT applies only to a GPU in MIG mode, MISSING only to a slice that is held but absent."""

    HELD = "held"
    PREPARING = "preparing"
    MISSING = "missing"
    IN_USE = "in_use"
    IDLE = "idle"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """A GPU that answers, as a whole; `reading` is None where its gauges were not read."""

    gpu: GpuState
    state: _DeviceState
    reading: GpuReading | None
    holders: tuple[Allocation, ...]

    @property
    def labels(self) -> Mapping[str, str]:
        """The GPU, and the pod that holds it whole."""
        return {"gpu_uuid": self.gpu.uuid, **pod_labels(self.holders)}


@dataclass(frozen=True, slots=True)
class MeasuredSlice:
    """A MIG device, or a GPU instance with none or several of them, or the place of a promised instance.

    `reading` is of the GPU instance, and given once for each: with its only MIG device, else with the GPU instance itself.
    `state` is None for a GPU instance that is listed beside its MIG devices only for its reading.
    """

    gpu: GpuState
    row: SliceRow
    state: _DeviceState | None
    piece: ComputeInstance | None = None
    reading: SliceReading | None = None
    holders: tuple[Allocation, ...] = ()

    @property
    def labels(self) -> Mapping[str, str]:
        """Which slice it is, and the pod that has it."""
        name, place = self.row.profile, str(self.row.placement)
        if self.piece is not None and not self.piece.name.spans_gpu_instance:
            name, place = self.piece.name, f"{place}/{self.piece.start}:{self.piece.slices}"
        return {
            "gpu_uuid": self.gpu.uuid,
            "mig_uuid": self.piece.uuid if self.piece is not None else "",
            "profile": str(name),
            "placement": place,
            **pod_labels(self.holders),
        }

    @property
    def compute_slices(self) -> int:
        """How many compute slices it has."""
        return self.piece.slices if self.piece is not None else self.row.profile.slices


def pod_labels(holders: Iterable[Allocation]) -> Mapping[str, str]:
    """The container that holds something; empty names if the holder is no pod, or there are several."""
    keepers = {each.keeper for each in holders}
    found = {(each.namespace, each.name, each.container) for each in keepers if isinstance(each, PodKeeper)}
    if len(found) != 1:
        return _NO_POD
    return dict(zip(_NO_POD, found.pop(), strict=True))


def measured_gpus(view: NodeView, readings: Mapping[str, GpuReading]) -> Iterator[MeasuredGpu]:
    """Every GPU that answers."""
    for gpu in view.node:
        if not gpu.lost:
            holders = whole_holders(view, gpu)
            yield MeasuredGpu(gpu, _gpu_state(gpu, holders), readings.get(gpu.uuid), holders)


def measured_slices(view: NodeView, readings: Mapping[str, GpuReading]) -> Iterator[MeasuredSlice]:
    """Every slice of every GPU, by place; of a lost GPU only the held ones."""
    for gpu in view.node:
        read = readings[gpu.uuid].slices if gpu.uuid in readings else {}
        for row in slices_on(view, gpu):
            reading = None if row.instance is None else read.get(row.instance.id)
            yield from _parts(gpu, row, reading)


def _parts(gpu: GpuState, row: SliceRow, reading: SliceReading | None) -> Iterator[MeasuredSlice]:
    instance = row.instance
    pieces = () if instance is None else instance.compute_instances
    if len(pieces) == 1 and pieces[0].name.spans_gpu_instance:
        yield MeasuredSlice(gpu, row, _row_state(row), pieces[0], reading, row.allocations)
        return
    state = _row_state(row) if not pieces else None
    yield MeasuredSlice(gpu, row, state, None, reading, row.allocations)
    for piece in pieces:
        holders = tuple(each for each in row.allocations if _holds(each, row, piece))
        yield MeasuredSlice(gpu, row, _piece_state(piece, holders), piece, None, holders)


def _holds(allocation: Allocation, row: SliceRow, piece: ComputeInstance) -> bool:
    return any(
        grant.slot == row.key and (not isinstance(grant, ComputeSlice) or grant.start == piece.start)
        for grant in allocation.grants
    )


def _row_state(row: SliceRow) -> _DeviceState:
    return _DeviceState(row.state.replace(" ", "_"))


def _piece_state(piece: ComputeInstance, holders: tuple[Allocation, ...]) -> _DeviceState:
    if any(each.phase is Phase.PREPARING for each in holders):
        return _DeviceState.PREPARING
    if holders:
        return _DeviceState.HELD
    return _DeviceState.IN_USE if piece.processes else _DeviceState.IDLE


def _gpu_state(gpu: GpuState, holders: tuple[Allocation, ...]) -> _DeviceState:
    if any(each.phase is Phase.PREPARING for each in holders):
        return _DeviceState.PREPARING
    if holders:
        return _DeviceState.HELD
    if gpu.mig_enabled:
        return _DeviceState.CUT
    return _DeviceState.IN_USE if gpu.processes else _DeviceState.IDLE
