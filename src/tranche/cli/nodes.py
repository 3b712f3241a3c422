"""`tranche nodes`: a cluster's nodes with GPUs."""

from __future__ import annotations

import click

from tranche.cli.kubeconfig_option import kubeconfig_option
from tranche.cli.runtime import TrancheCommand, output_option


@click.command("nodes", cls=TrancheCommand)
@kubeconfig_option
@output_option()
def command(kubeconfig: str | None, output: str) -> None:
    """List the nodes of a Kubernetes cluster that have GPUs.

    MODE shows how a node offers its GPUs. LARGEST FREE is the largest share that a claim can get there now. OUT counts
    unavailable GPUs by reason.
    """
    from tranche.cli.cluster_gpus import show_nodes

    show_nodes(kubeconfig, as_json=output == "json")
