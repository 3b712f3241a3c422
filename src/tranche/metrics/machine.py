"""Reads what metrics say of one machine: its register, its GPUs and their gauges. Everything here blocks."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import version

from tranche.core.allocation import NodeView
from tranche.core.readings import GpuReading
from tranche.hardware.nvml_errors import NVML_ERRORS
from tranche.hardware.nvml_gauges import LEAST_SECONDS, NvmlGaugeReader
from tranche.metrics.facts import NodeFacts
from tranche.node.host import Host
from tranche.node.store import records
from tranche.node.store.journal import change_totals


def facts_of_ledger(host: Host, now: float) -> NodeFacts:
    """The queue and the changes; `now` is seconds since the epoch. Raises LedgerUnavailable and other errors of the ledger."""
    with host.ledger.read() as db:
        waiters, changes = records.waiters(db), change_totals(db)
    return NodeFacts(
        now=now,
        version=version("tranche-gpu"),
        waiting_since=tuple(each.created for each in waiters),
        changes=changes,
        nvml_errors=NVML_ERRORS.counts(),
    )


def facts_without_machine() -> NodeFacts:
    """What is known if neither the GPUs nor the register can be read."""
    return NodeFacts(now=time.time(), version=version("tranche-gpu"), nvml_errors=NVML_ERRORS.counts())


def facts_of_machine(host: Host, view: NodeView) -> NodeFacts:
    """All that the look at `view` tells. It takes two readings, since activity is what happened between two."""
    readings = _two_readings(view)
    return replace(facts_of_ledger(host, time.time()), view=view, readings=readings)


def _two_readings(view: NodeView) -> tuple[GpuReading, ...]:
    gauges = NvmlGaugeReader(time.monotonic)
    gauges.read(view.node)
    time.sleep(2 * LEAST_SECONDS)
    return gauges.read(view.node)
