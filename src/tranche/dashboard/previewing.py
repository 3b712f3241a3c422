"""What a layout would do to the machine as it was seen last: the plan that `tranche layout plan` prints, and its blockers."""

from __future__ import annotations

from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.blocks import Document
from tranche.documents.layout_change import preview_data
from tranche.planning.layouts.generate import generate_layouts
from tranche.planning.layouts.reconfigure import plan_layout


def layout_names(snapshot: MachineSnapshot) -> list[str]:
    """The layouts that are generated for the machine's own GPUs; TrancheError where there is none."""
    return [layout.name for layout in generate_layouts(snapshot.view.node).layouts]


def layout_preview(snapshot: MachineSnapshot, name: str) -> Document:
    """What it takes to have that layout; TrancheError where it cannot be."""
    layout = generate_layouts(snapshot.view.node).select(name)
    return preview_data(plan_layout(snapshot.view, layout), snapshot.view)
