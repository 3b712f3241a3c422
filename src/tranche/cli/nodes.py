"""`tranche nodes`: a cluster's nodes with GPUs."""

from __future__ import annotations

import click

from tranche.cli.kubeconfig_option import kubeconfig_option
from tranche.cli.runtime import TrancheCommand, output_option


@click.command("nodes", cls=TrancheCommand)
@kubeconfig_option
@output_option()
def command(kubeconfig: str | None, output: str) -> None:
    """List the nodes of a Kubernetes cluster that have GPUs: how each gives them away, and what is left.

    LARGEST FREE is the largest share that a claim could have there now.
    """
    from tranche.cli.cluster_gpus import show_nodes

    show_nodes(kubeconfig, as_json=output == "json")
