"""`tranche gpus -o svg`: the picture of the machine's GPUs, for tickets and reports."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

import click

from tranche.cli.settings import Settings
from tranche.core.allocation import NodeView
from tranche.documents.picture import draw_picture
from tranche.documents.shares import allocation_document


def show_picture(settings: Settings, view: NodeView, gpus: Sequence[dict[str, Any]], *, ledger_read: bool) -> None:
    """Print the picture of what GpuList and AllocationList say now."""
    allocations = [allocation_document(each, view) for each in view.allocations]
    unknown = "" if ledger_read else "; who holds which slice is not known"
    click.echo(draw_picture(gpus, allocations, f"{_machine(settings)}, {_moment(time.time())}{unknown}"), nl=False)


def _machine(settings: Settings) -> str:
    if settings.simulate is not None:
        return f"simulated {settings.simulate}"
    return "a simulated machine" if os.environ.get("TRANCHE_SIM_STATE") else platform.node()


def _moment(seconds: float) -> str:
    """A reader of the picture may be anywhere, so the time is UTC."""
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
