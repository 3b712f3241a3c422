"""`tranche gpus -o svg`: the picture of the machine's GPUs, for tickets and reports."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from typing import Any

import click

from tranche.cli.runtime import Settings
from tranche.core.allocation import NodeView
from tranche.documents import describe
from tranche.documents.picture import draw_picture
from tranche.documents.shares import allocation_document
from tranche.node.store.register import process_owners


def show_picture(settings: Settings, view: NodeView, gpus: Sequence[dict[str, Any]], *, ledger_read: bool) -> None:
    """Print the picture of what GpuList and AllocationList say now."""
    owners = process_owners(view.allocations)
    allocations = [allocation_document(each, view, owners) for each in view.allocations]
    unknown = "" if ledger_read else "; the holders of slices are unknown"
    caption = f"{_machine(settings)}, {describe.said_in_utc(time.time())}{unknown}"
    click.echo(draw_picture(gpus, allocations, caption), nl=False)


def _machine(settings: Settings) -> str:
    if settings.simulate is not None:
        return f"simulated {settings.simulate}"
    return "a simulated machine" if os.environ.get("TRANCHE_SIM_STATE") else platform.node()
