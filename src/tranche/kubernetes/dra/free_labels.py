"""What claims can have of a node now, as labels for whatever chooses nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tranche.core.allocation import FractionalShare, NodeView
from tranche.core.quantity import MIB
from tranche.kubernetes.claims.vocabulary import (
    FREE_GPUS_LABEL,
    LARGEST_MEMORY_LABEL,
    LARGEST_SLICE_LABEL,
    CapacityName,
    TaintKey,
)
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind
from tranche.kubernetes.dra.pool import is_taken

FREE_LABELS = (LARGEST_SLICE_LABEL, LARGEST_MEMORY_LABEL, FREE_GPUS_LABEL)


def free_labels(
    devices: Collection[NodeDevice], view: NodeView, reasons: Mapping[str, Sequence[TaintKey]]
) -> dict[str, str | None]:
    """The labels by key, None for one to remove; `reasons` rule out devices, by device name."""
    free = [each for each in devices if not reasons.get(each.name) and not is_taken(each, view)]
    slices = [
        each for each in free if each.kind is OfferKind.SLICE and each.profile and not each.profile.has_attributes
    ]
    largest = max(slices, key=lambda each: (_left(each, view), each.profile), default=None)
    return {
        LARGEST_SLICE_LABEL: None if largest is None else str(largest.profile),
        LARGEST_MEMORY_LABEL: str(max((_left(each, view) for each in free), default=0) // MIB),
        FREE_GPUS_LABEL: str(sum(each.kind is OfferKind.WHOLE for each in free)),
    }


def _left(device: NodeDevice, view: NodeView) -> int:
    """The bytes of it that one more claim can have."""
    memory = device.capacity.get(CapacityName.MEMORY)
    if memory is None:
        return 0
    grants = view.grants_on(device.gpu_uuid) if device.sharing is not None else ()
    given = sum(each.memory for each in grants if isinstance(each, FractionalShare) and each.device == device.offered)
    left = memory.value - given
    return left if left >= memory.least else 0
