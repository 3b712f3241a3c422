"""Findings of a checkup."""

from __future__ import annotations

from tranche.node.health.checkup import Finding


def finding_document(found: Finding) -> dict[str, object]:
    """One finding; `check` and `status` are stable words."""
    return {
        "check": found.check,
        "status": str(found.status),
        "gpu": found.gpu,
        "message": found.text,
        "hint": found.hint,
    }
