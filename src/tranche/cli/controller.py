"""`tranche controller`: what a Kubernetes cluster has once."""

from __future__ import annotations

import os
import platform
import sys
from datetime import timedelta

import click

from tranche.cli.duration import DurationType
from tranche.cli.extras import extra_missing
from tranche.cli.runtime import TrancheCommand
from tranche.cli.service_options import (
    ANY_PORT,
    SERVICE_KUBECONFIG_HELP,
    SERVICE_NAMESPACE_HELP,
    TIER_HELP,
    health_options,
    log_as_json,
    log_options,
)


@click.command("controller", cls=TrancheCommand)
@click.option("--kubeconfig", metavar="FILE", help=SERVICE_KUBECONFIG_HELP)
@click.option(
    "--namespace",
    metavar="NAME",
    envvar="POD_NAMESPACE",
    default="",
    help=f"Namespace of the controller. {SERVICE_NAMESPACE_HELP}",
)
@click.option(
    "--service",
    metavar="NAME",
    default="tranche-agent-controller",
    show_default=True,
    help="Service of the webhook.",
)
@click.option(
    "--webhook-configuration",
    metavar="NAME",
    default="tranche-agent-controller",
    show_default=True,
    help="MutatingWebhookConfiguration in which the controller keeps its certificate trusted.",
)
@click.option(
    "--replica", metavar="NAME", envvar="POD_NAME", help="Name of this replica. Default: $POD_NAME, or the hostname."
)
@click.option("--webhook-host", metavar="ADDRESS", default="", help="Address of the webhook. Default: all addresses.")
@click.option(
    "--webhook-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=9443,
    show_default=True,
    help=f"Port of the webhook; {ANY_PORT}.",
)
@health_options
@click.option(
    "--certificate-lifetime",
    type=DurationType(least=10.0),
    metavar="TIME",
    default="7d",
    show_default=True,
    help="Lifetime of a certificate, such as 12h or 7d. The controller renews it at half of this time.",
)
@click.option(
    "--take-over-scheduler",
    metavar="NAME",
    multiple=True,
    help="Scheduler to replace by the cluster's default scheduler in pods with a share, such as kai-scheduler; repeatable.",
)
@click.option(
    "--tier",
    "backend",
    type=click.Choice(["auto", "claims", "gates"]),
    default="auto",
    show_default=True,
    help=TIER_HELP,
)
@log_options
def command(
    kubeconfig: str | None,
    namespace: str,
    service: str,
    webhook_configuration: str,
    replica: str | None,
    webhook_host: str,
    webhook_port: int,
    health_host: str,
    health_port: int,
    certificate_lifetime: float,
    take_over_scheduler: tuple[str, ...],
    backend: str,
    log_format: str,
    verbose: bool,
) -> None:
    """Run the controller of a Kubernetes cluster until SIGTERM.

    The controller is a webhook: it turns annotations of new pods into claims, in namespaces that opt in. On a cluster
    without claims, one replica chooses shares for waiting pods. The controller creates its own certificate and keeps it
    trusted. The chart runs two replicas, as a Deployment.
    """
    try:
        from tranche.kubernetes.claims.allocation_backend import backend_by_word
        from tranche.kubernetes.controller.process import ControllerOptions, run_controller
        from tranche.kubernetes.serving import logs
    except ModuleNotFoundError as error:
        raise extra_missing("'tranche controller'", "kubernetes", error) from error
    logs.set_up(sys.stderr, as_json=log_as_json(log_format), verbose=verbose)
    os.umask(0o077)
    run_controller(
        ControllerOptions(
            kubeconfig=kubeconfig,
            namespace=namespace,
            service=service,
            configuration=webhook_configuration,
            replica=replica or platform.node().lower(),
            webhook_host=webhook_host,
            webhook_port=webhook_port,
            health_host=health_host,
            health_port=health_port,
            lifetime=timedelta(seconds=certificate_lifetime),
            take_over=take_over_scheduler,
            backend=backend_by_word(backend),
        )
    )
