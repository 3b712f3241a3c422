"""`tranche gpus`: the GPUs with their slices under them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import click

from tranche.cli.options import kubeconfig_option, refuse_kubeconfig_alone
from tranche.cli.output import print_json, print_table, warn
from tranche.cli.runtime import (
    Settings,
    TrancheCommand,
    child_environment,
    open_driver,
    output_option,
    register_places,
    unsettled,
    warn_of_hidden_devices,
)
from tranche.core.allocation import NodeView
from tranche.core.errors import LedgerUnavailable, PermissionDenied, UsageError
from tranche.core.quantity import format_memory
from tranche.core.state import GpuState
from tranche.documents import describe
from tranche.documents.holder_names import Owners
from tranche.documents.machine import gpu_document
from tranche.documents.slices import SliceRow, slices_on, whole_holders
from tranche.node.look import look
from tranche.node.store.register import process_owners

_COLUMNS = ("GPU", "MODEL OR SLICE", "MEMORY", "MIG", "STATE", "PROCESSES", "NUMA")
_WIDE_COLUMNS = (*_COLUMNS, "UUID", "BUS ID")


@click.command(cls=TrancheCommand)
@click.option("--cluster", is_flag=True, help="List the GPUs that nodes of a Kubernetes cluster offer to claims.")
@kubeconfig_option
@output_option("table", "wide", "json", "svg")
@click.pass_obj
def command(settings: Settings, /, cluster: bool, kubeconfig: str | None, output: str) -> None:
    """List GPUs, their slices and their holders.

    Each slice appears below its GPU, with the index of its MIG device. The MIG column shows who created the slice:
    `tranche` or `foreign`. If you cannot read the ledger, the list shows only the hardware.

    With -o svg, the output is a picture for tickets and reports, with slices ordered by placement.

    With --cluster, the list shows the GPUs that nodes offer to claims and the shares that pods hold, if your account
    can read them. It does not show GPUs that device plugins manage; to count these GPUs, use tranche nodes.
    """
    refuse_kubeconfig_alone(kubeconfig, cluster)
    if cluster and output == "svg":
        raise UsageError("-o svg draws only one machine", hint="omit --cluster")
    if cluster:
        from tranche.cli.nodes import show_gpus  # seldom needed, and slow to import

        show_gpus(kubeconfig, as_json=output == "json")
        return
    view, ledger_read = _look(settings)
    warn_of_hidden_devices(view.node)
    if output in ("json", "svg"):
        documents = [gpu_document(view, gpu, ledger_read=ledger_read) for gpu in view.node]
        if output == "svg":
            _show_picture(settings, view, documents, ledger_read=ledger_read)
            return
        versions = {"driverVersion": view.node.driver_version, "nvmlVersion": view.node.nvml_version}
        print_json("GpuList", **versions, ledgerRead=ledger_read, gpus=documents)
        return
    rows: list[list[object]] = []
    owners = process_owners(view.allocations)
    for gpu in view.node:
        slices = slices_on(view, gpu)
        rows.append(_gpu_row(view, gpu, slices, owners))
        rows += [_slice_row(each, ledger_read, owners) for each in slices]
    if output == "wide":
        print_table(_WIDE_COLUMNS, rows)
    else:
        print_table(_COLUMNS, [row[: len(_COLUMNS)] for row in rows])


def _look(settings: Settings) -> tuple[NodeView, bool]:
    """The machine as it is now, and whether the ledger could be read."""
    with open_driver(settings) as driver:
        try:
            places = register_places(settings, reading=True)
            return look(driver, places, unsettled, lambda: child_environment(settings)), True
        except (PermissionDenied, LedgerUnavailable) as error:
            warn(f"{error.message}; the holders of slices are not shown")
            return NodeView(driver.observe()), False


def _show_picture(settings: Settings, view: NodeView, gpus: Sequence[dict[str, Any]], *, ledger_read: bool) -> None:
    """Print the picture of what GpuList and AllocationList say now, for tickets and reports."""
    import platform  # seldom needed, and slow to import, as all here

    from tranche.documents.overview import allocation_document
    from tranche.documents.picture import draw_picture

    owners = process_owners(view.allocations)
    allocations = [allocation_document(each, view, owners) for each in view.allocations]
    unknown = "" if ledger_read else "; the holders of slices are unknown"
    machine = "a simulated machine" if os.environ.get("TRANCHE_SIM_STATE") else platform.node()
    if settings.simulate is not None:
        machine = f"simulated {settings.simulate}"
    caption = f"{machine}, {describe.said_in_utc(time.time())}{unknown}"
    click.echo(draw_picture(gpus, allocations, caption), nl=False)


def _gpu_row(view: NodeView, gpu: GpuState, slices: tuple[SliceRow, ...], owners: Owners) -> list[object]:
    return [
        gpu.index,
        gpu.name,
        format_memory(gpu.memory) if gpu.memory else "-",
        describe.mig_mode(gpu),
        describe.gpu_state(view, gpu, slices, whole_holders(view, gpu), owners),
        describe.processes(gpu.processes),
        gpu.numa_node,
        gpu.uuid,
        gpu.pci_bus_id,
    ]


def _slice_row(each: SliceRow, ledger_read: bool, owners: Owners) -> list[object]:
    found = each.instance
    devices = () if found is None else found.compute_instances
    memory = None if found is None else found.memory
    inside = "" if found is None or not devices or found.whole_slice else f" ({', '.join(map(str, found.slices))})"
    return [
        "  MIG " + (",".join(str(device.mig_index) for device in devices) or "-"),
        f"{each.profile} at {each.placement}{inside}",
        "" if memory is None else format_memory(memory),
        ("tranche" if each.owned else "foreign") if ledger_read else "",
        describe.slice_state(each, owners),
        "" if found is None else describe.processes(found.processes),
        "",
        ",".join(device.uuid for device in devices),
        "",
    ]
