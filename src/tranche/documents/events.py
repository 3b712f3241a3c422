"""Events as JSON data."""

from __future__ import annotations

from typing import Any

from tranche.core.events import Event, event_data_to_dict
from tranche.documents.describe import timestamp


def event_document(event: Event) -> dict[str, Any]:
    """One event of the ledger; `type` is a stable word."""
    return {
        "position": event.position,
        "time": timestamp(event.time),
        "type": event.name,
        "gpuUUID": event.gpu_uuid or None,
        "allocationId": event.allocation_id or None,
        "message": event.message,
        "cause": event.cause,
        "data": None if event.data is None else event_data_to_dict(event.data),
    }
