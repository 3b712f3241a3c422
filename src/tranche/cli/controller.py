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
from tranche.cli.service_options import health_options, log_as_json, log_options


@click.command("controller", cls=TrancheCommand)
@click.option("--kubeconfig", metavar="FILE", help="How to reach the API server; else $KUBECONFIG, else as a pod.")
@click.option(
    "--namespace", metavar="NAME", envvar="POD_NAMESPACE", default="", help="Where the controller's Service is."
)
@click.option(
    "--service",
    metavar="NAME",
    default="tranche-agent-controller",
    show_default=True,
    help="The Service by which the API server finds the webhook.",
)
@click.option(
    "--webhook-configuration",
    metavar="NAME",
    default="tranche-agent-controller",
    show_default=True,
    help="The MutatingWebhookConfiguration in which the certificate is kept trusted.",
)
@click.option(
    "--replica", metavar="NAME", envvar="POD_NAME", help="This one's name among others; else the host's name."
)
@click.option(
    "--webhook-host", metavar="ADDRESS", default="", help="The address to answer the API server on; else every one."
)
@click.option(
    "--webhook-port", type=click.IntRange(0, 65535), default=9443, show_default=True, help="Its port; 0: any."
)
@health_options
@click.option(
    "--certificate-lifetime",
    type=DurationType(least=10.0),
    metavar="TIME",
    default="7d",
    show_default=True,
    help="How long a certificate is valid; the next one serves after half of it.",
)
@click.option(
    "--take-over-scheduler",
    metavar="NAME",
    multiple=True,
    help="A scheduler whose pods get the cluster's own when they are given a share, such as kai-scheduler; repeatable.",
)
@click.option(
    "--tier",
    "backend",
    type=click.Choice(["auto", "claims", "gates"]),
    default="auto",
    show_default=True,
    help="How the cluster gives shares: by claims, or by scheduling gates; auto: as its version says.",
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
    """Serve a Kubernetes cluster until SIGTERM: turn the annotations of pods into claims, or choose shares for pods that wait.

    A Deployment in production, of two replicas, of which one chooses where the cluster has no claims. It answers the API server,
    which asks about new pods in the namespaces that opt in, makes its own certificate and keeps it trusted. Logs go to stderr, as
    JSON lines unless a person reads them.
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
