"""`tranche nodes`, and what `tranche gpus --cluster` shows: a cluster's nodes and GPUs, as far as the caller may read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tranche.cli.options import asked_as_person, kubeconfig_option
from tranche.cli.output import print_json, print_table, warn
from tranche.cli.runtime import TrancheCommand, output_option
from tranche.core.quantity import format_memory

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.fleet.fleet import Fleet

_NODE_COLUMNS = ("NODE", "STATUS", "MODE", "GPUS", "CLAIMS", "LARGEST FREE", "OUT")
_NAMED = 8
_GPU_COLUMNS = ("NODE", "GPU", "MODEL OR SHARE", "MEMORY", "STATE OR HOLDER")


@click.command("nodes", cls=TrancheCommand)
@kubeconfig_option
@output_option()
def command(kubeconfig: str | None, output: str) -> None:
    """List the GPU nodes of a Kubernetes cluster.

    MODE shows how a node offers its GPUs. LARGEST FREE is the largest share that a claim can get on the node now. OUT
    counts unavailable GPUs by reason.
    """
    from tranche.kubernetes.fleet.overview import node_document, summaries

    fleet = _fleet(kubeconfig)
    found = summaries(fleet)
    if output == "json":
        print_json("NodeList", unread=dict(fleet.unread), nodes=[node_document(each) for each in found])
        return
    rows = []
    for each in found:
        free = format_memory(each.largest_free) if each.largest_free else ""
        out = ", ".join([*each.out, *([] if each.complete else ["publishing"])])
        rows.append((each.node.name, each.status, each.node.mode_text, ", ".join(each.models), each.claims, free, out))
    print_table(_NODE_COLUMNS, rows)


def show_gpus(kubeconfig: str | None, *, as_json: bool) -> None:
    """Print the GPUs that nodes offer to claims, and who has what of them; name nodes that offer theirs otherwise."""
    from tranche.kubernetes.fleet.explanation import held_memory, share_text
    from tranche.kubernetes.fleet.overview import gpu_document, summaries

    fleet = _fleet(kubeconfig)
    nodes = summaries(fleet)
    if counted := [each.node.name for each in nodes if each.node.resources and not each.gpus]:
        more = f" and {len(counted) - _NAMED} more" if len(counted) > _NAMED else ""
        warn(
            f"not listed: {', '.join(counted[:_NAMED])}{more}; a device plugin reports only how many devices it has, so "
            "run tranche nodes, or tranche gpus on the node"
        )
    gpus = [gpu for each in nodes for gpu in each.gpus]
    if as_json:
        print_json("ClusterGpuList", unread=dict(fleet.unread), gpus=[gpu_document(each) for each in gpus])
        return
    rows: list[tuple[object, ...]] = []
    for gpu in gpus:
        rows.append((gpu.node, gpu.minor, gpu.model, format_memory(gpu.memory), gpu.state))
        for held in gpu.held:
            rows.append((gpu.node, gpu.minor, f"  {share_text(held)}", held_memory(held), held.claim.holder))
    print_table(_GPU_COLUMNS, rows)


def _fleet(kubeconfig: str | None) -> Fleet:
    async def ask(api: ApiConnection, namespace: str) -> Fleet:
        from tranche.kubernetes.gated.reading import read_any_fleet

        return await read_any_fleet(api, namespace)

    fleet = asked_as_person(kubeconfig, None, ask)
    for what in fleet.unread:
        warn(f"your account has no permission to read {what}")
    return fleet
