"""`tranche leave`: take the agents off a Kubernetes cluster."""

from __future__ import annotations

import os

import click

from tranche.cli.options import extra_missing
from tranche.cli.output import say
from tranche.cli.runtime import TrancheCommand
from tranche.cli.service_options import KUBECONFIG_OPTION


@click.command("leave", cls=TrancheCommand, params=[KUBECONFIG_OPTION])
@click.option(
    "--namespace",
    metavar="NAME",
    envvar="POD_NAMESPACE",
    default="",
    help="Namespace in which the agents run. Default: $POD_NAMESPACE, or tranche-system.",
)
@click.option(
    "--daemon-set", metavar="NAME", default="tranche-agent", show_default=True, help="DaemonSet that runs the agents."
)
@click.option(
    "--without",
    type=click.Choice(("mig-manager", "feature-labels", "dra", "controller")),
    multiple=True,
    help="Keep the data of this component, for example if another program has taken over its job; repeatable.",
)
@click.option(
    "--patience",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Maximum time to wait for the agents to exit, in seconds.",
)
def command(kubeconfig: str | None, namespace: str, daemon_set: str, without: tuple[str, ...], patience: float) -> None:
    """Remove the agents from a Kubernetes cluster.

    The command deletes the agents' DaemonSet, then removes the agents' labels, annotations and conditions from the
    nodes. It keeps your settings, such as nvidia.com/mig.config, and does not change nodes with agents from another
    DaemonSet. `helm uninstall` runs this command in a job.

    Slices remain, and running pods keep using them. The command first lists the pods that hold claims, because these
    pods cannot terminate without an agent. It deletes the claim templates that the controller created, unless a pod
    still needs them. It prints one line per node on stderr.
    """
    try:
        from tranche.kubernetes.agent.leaving import FEATURE_LABELS, MIG_MANAGER, leave, say_claims_left
        from tranche.kubernetes.webhook.template_store import remove_templates
    except ModuleNotFoundError as error:
        raise extra_missing("'tranche leave'", "kubernetes", error) from error
    parts = {MIG_MANAGER, FEATURE_LABELS} - set(without)

    if "dra" not in without:
        say_claims_left(kubeconfig, os.environ, say)
    leave(kubeconfig, os.environ, namespace or "tranche-system", daemon_set, parts, patience, say)
    if "controller" not in without:
        remove_templates(kubeconfig, os.environ, say)
