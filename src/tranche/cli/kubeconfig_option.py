"""The option by which a command finds the caller's cluster."""

from __future__ import annotations

import click

kubeconfig_option = click.option(
    "--kubeconfig",
    metavar="FILE",
    help="How to reach the cluster; else $KUBECONFIG, ~/.kube/config, or as a pod.",
)
