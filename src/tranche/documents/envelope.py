"""The fields that every document has."""

from __future__ import annotations

from typing import Any

from tranche.core.errors import TrancheError

API_VERSION = "tranche.dev/v1"


def document(kind: str, **data: Any) -> dict[str, Any]:
    """A document of that kind."""
    return {"apiVersion": API_VERSION, "kind": kind, **data}


def error_document(error: TrancheError) -> dict[str, Any]:
    """An error for stderr, if JSON was requested."""
    body = {"reason": error.reason, "exitCode": error.exit_code, "message": error.message, "hint": error.hint}
    return document("Error", **body)
