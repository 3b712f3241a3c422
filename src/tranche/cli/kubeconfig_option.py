"""The option by which a command finds the caller's cluster."""

from __future__ import annotations

import click

kubeconfig_option = click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the service account of the pod.",
)
