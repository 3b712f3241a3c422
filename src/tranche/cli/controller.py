"""`tranche controller`: what a Kubernetes cluster has once."""

from __future__ import annotations

import os
import platform
import sys
from datetime import timedelta
from typing import Any

import click

from tranche.cli.options import DurationType, extra_missing
from tranche.cli.runtime import TrancheCommand
from tranche.cli.service_options import (
    HEALTH_OPTIONS,
    LOG_OPTIONS,
    TIER_OPTION,
    cluster_options,
    log_as_json,
    port_option,
)

_OPTIONS = [
    *cluster_options("the controller"),
    click.Option(
        ["--service"],
        metavar="NAME",
        default="tranche-agent-controller",
        show_default=True,
        help="Service in front of the webhook.",
    ),
    click.Option(
        ["--webhook-configuration", "configuration"],
        metavar="NAME",
        default="tranche-agent-controller",
        show_default=True,
        help="MutatingWebhookConfiguration in which to publish the certificate.",
    ),
    click.Option(
        ["--replica"],
        metavar="NAME",
        envvar="POD_NAME",
        help="Name of this replica. Default: $POD_NAME, or the hostname.",
    ),
    click.Option(
        ["--webhook-host"],
        metavar="ADDRESS",
        default="",
        help="Address on which the webhook listens. Default: all addresses.",
    ),
    port_option("--webhook-port", 9443, "Port for the webhook"),
    *HEALTH_OPTIONS,
    click.Option(
        ["--certificate-lifetime"],
        type=DurationType(least=10.0),
        metavar="TIME",
        default="7d",
        show_default=True,
        help="Lifetime of the certificate, such as 12h or 7d. The controller renews it halfway through.",
    ),
    click.Option(
        ["--take-over-scheduler", "take_over"],
        metavar="NAME",
        multiple=True,
        help="Scheduler to replace with the default one in pods with a share, such as kai-scheduler; repeatable.",
    ),
    TIER_OPTION,
    *LOG_OPTIONS,
]
"""Those that need no reading have the names of `ControllerOptions`."""


@click.command("controller", cls=TrancheCommand, params=_OPTIONS)
def command(
    replica: str | None, certificate_lifetime: float, tier: str, log_format: str, verbose: bool, **options: Any
) -> None:
    """Run the controller for a Kubernetes cluster until SIGTERM.

    In namespaces that opt in, the controller's webhook turns annotations on new pods into claims. On a cluster without
    claims, one replica chooses shares for waiting pods instead. The controller creates its own certificate and
    publishes it. The chart runs two replicas in a Deployment.
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
            **options,
            replica=replica or platform.node().lower(),
            lifetime=timedelta(seconds=certificate_lifetime),
            backend=backend_by_word(tier),
        )
    )
