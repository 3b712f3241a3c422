"""A machine at one moment: its GPUs, who holds them, and who waits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tranche.core.allocation import NodeView
from tranche.documents.holder_names import NO_OWNERS, Owners
from tranche.documents.machine import gpu_document
from tranche.documents.queue import waiter_documents
from tranche.documents.shares import allocation_document
from tranche.node.store.records import Waiter


def overview_data(
    view: NodeView, queue: Sequence[Waiter], away: Collection[str], owners: Owners = NO_OWNERS
) -> dict[str, Any]:
    """The fields of an Overview; `away` are the waiters that do not answer."""
    return {
        "gpus": [gpu_document(view, gpu) for gpu in view.node],
        "allocations": [allocation_document(each, view, owners) for each in view.allocations],
        "waiters": waiter_documents(view, queue, away, owners),
    }
