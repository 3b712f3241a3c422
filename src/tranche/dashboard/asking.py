"""What a request would get, and what a layout would do, on the machine as it was seen last: as the commands say it."""

from __future__ import annotations

from collections.abc import Mapping

from tranche.core.allocation import NodeView
from tranche.core.errors import UsageError
from tranche.core.request import Request, parse_request
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.blocks import Document
from tranche.documents.explanation import explanation_document
from tranche.documents.layout_change import preview_data
from tranche.planning.decide.queue import WaitingRequest
from tranche.planning.explain.explanation import explain
from tranche.planning.layouts.generate import generate_layouts
from tranche.planning.layouts.reconfigure import plan_layout

_KINDS = frozenset({"gpu_memory", "gpu", "mig_profile", "gpus"})


def asked_request(fields: Mapping[str, str]) -> Request:
    """The request that the form's fields make; UsageError where they make none."""
    kind = fields.get("kind", "")
    if kind not in _KINDS:
        raise UsageError("choose what to ask for", hint=f"one of {', '.join(sorted(_KINDS))}")
    return parse_request(
        **{kind: fields.get("amount", "")},
        isolation=fields.get("isolation") or "soft",
        gpu_model=fields.get("gpu_model", ""),
    )


def answer(snapshot: MachineSnapshot, view: NodeView, fields: Mapping[str, str]) -> Document:
    """The Explanation document of the request that the form's fields make; UsageError where they make none.

    `view` is the snapshot's, where MPS daemons are as they say now.
    """
    request = asked_request(fields)
    waiters = [WaitingRequest(each.id, each.request) for each in snapshot.queue if each.id not in snapshot.away]
    return explanation_document(explain(view, request, waiters), len(waiters))


def layout_names(snapshot: MachineSnapshot) -> list[str]:
    """The layouts that are generated for the machine's own GPUs; TrancheError where there is none."""
    return [layout.name for layout in generate_layouts(snapshot.view.node).layouts]


def layout_preview(snapshot: MachineSnapshot, name: str) -> Document:
    """What it takes to have that layout; TrancheError where it cannot be."""
    layout = generate_layouts(snapshot.view.node).select(name)
    return preview_data(plan_layout(snapshot.view, layout), snapshot.view)
