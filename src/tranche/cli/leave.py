"""`tranche leave`: take the agents off a Kubernetes cluster."""

from __future__ import annotations

import os

import click

from tranche.cli.extras import extra_missing
from tranche.cli.output import say
from tranche.cli.runtime import TrancheCommand


@click.command("leave", cls=TrancheCommand)
@click.option("--kubeconfig", metavar="FILE", help="How to reach the API server; else $KUBECONFIG, else as a pod.")
@click.option(
    "--namespace", metavar="NAME", envvar="POD_NAMESPACE", default="", help="Where the agents run; else tranche-system."
)
@click.option(
    "--daemon-set", metavar="NAME", default="tranche-agent", show_default=True, help="The DaemonSet that runs them."
)
@click.option(
    "--without",
    type=click.Choice(("mig-manager", "feature-labels", "dra", "controller")),
    multiple=True,
    help="Leave what this part writes: another program does its work.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="For how many seconds to wait for the agents to end.",
)
def command(kubeconfig: str | None, namespace: str, daemon_set: str, without: tuple[str, ...], patience: float) -> None:
    """Take the agents off a Kubernetes cluster: delete their DaemonSet, and take back what they have written on the nodes.

    `helm uninstall` runs it as a job before it deletes the rest. Labels, annotations and the condition of the agents go; what
    people have set stays, such as nvidia.com/mig.config, and so do nodes on which agents of another DaemonSet run. Running pods
    keep their slices, and the GPUs stay as they are cut. Pods with claims are named first: they end only while an agent is there.
    The claim templates that annotations have made go, but for those that pods still need. What is done is said on stderr, a line
    for each node.
    """
    try:
        from tranche.kubernetes.agent.claims_left import say_claims_left
        from tranche.kubernetes.agent.leaving import leave
        from tranche.kubernetes.agent.traces import FEATURE_LABELS, MIG_MANAGER
        from tranche.kubernetes.webhook.template_store import remove_templates
    except ModuleNotFoundError as error:
        raise extra_missing("'tranche leave'", "kubernetes", error) from error
    parts = {MIG_MANAGER, FEATURE_LABELS} - set(without)

    if "dra" not in without:
        say_claims_left(kubeconfig, os.environ, say)
    leave(kubeconfig, os.environ, namespace or "tranche-system", daemon_set, parts, patience, say)
    if "controller" not in without:
        remove_templates(kubeconfig, os.environ, say)
