"""`tranche cluster-dashboard`: a Kubernetes cluster as a page in browsers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click

from tranche.cli.options import extra_missing
from tranche.cli.runtime import TrancheCommand
from tranche.cli.service_options import HEALTH_OPTIONS, LOG_OPTIONS, cluster_options, log_as_json, port_option

_OPTIONS = [
    *cluster_options("the agents"),
    click.Option(
        ["--name"], metavar="TEXT", default="cluster", show_default=True, help="Cluster name to show on the pages."
    ),
    click.Option(
        ["--listen", "host"],
        metavar="ADDRESS",
        default="127.0.0.1",
        show_default=True,
        help="Address to listen on.",
    ),
    port_option("--port", 8899, "Port for the server"),
    click.Option(
        ["--host", "hosts"],
        metavar="NAME",
        multiple=True,
        help="Additional host name of the server, such as an ingress host; repeatable.",
    ),
    click.Option(
        ["--proxy-secret"],
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="File with a secret. A proxy that sends this secret as X-Tranche-Proxy-Secret can specify the user. Default: "
        "trust no proxy.",
    ),
    click.Option(
        ["--proxy-user-header"],
        metavar="NAME",
        default="X-Remote-User",
        show_default=True,
        help="Header with the user's name, for --proxy-secret.",
    ),
    click.Option(
        ["--proxy-group-header"],
        metavar="NAME",
        default="X-Remote-Group",
        show_default=True,
        help="Header with one of the user's groups, for --proxy-secret; the proxy can repeat it.",
    ),
    click.Option(
        ["--act"],
        is_flag=True,
        help="Let users cordon nodes, change layouts and delete pods with their own tokens. Default: read-only.",
    ),
    click.Option(
        ["--proxy-act"],
        is_flag=True,
        help="Let the proxy's users act too, if their RBAC permissions allow it. The server uses its own account for these "
        "actions. Needs --act and --proxy-secret.",
    ),
    *HEALTH_OPTIONS,
    *LOG_OPTIONS,
]
"""Besides those of the log, they have the names of `serve_cluster_page`."""


@click.command("cluster-dashboard", cls=TrancheCommand, params=_OPTIONS)
def command(log_format: str, verbose: bool, **options: Any) -> None:
    """Serve a live page for a Kubernetes cluster until SIGTERM.

    The page shows nodes, GPUs, slices, events, and why pods are waiting. Its data comes from agents started with
    --tell-view. Users sign in with a Kubernetes token. They see names only in namespaces where they can list pods.
    Elsewhere, the page shows "another namespace". With dashboard.enabled, the chart runs the server in a Deployment.
    """
    try:
        from tranche.dashboard.cluster.cluster_app import serve_cluster_page
        from tranche.dashboard.server import BackgroundWriter
        from tranche.kubernetes.serving import logs
    except ModuleNotFoundError as error:
        extra = "dashboard" if error.name in ("starlette", "uvicorn") else "kubernetes"
        raise extra_missing("'tranche cluster-dashboard'", extra, error) from error
    logs.set_up(BackgroundWriter(sys.stderr.fileno()), as_json=log_as_json(log_format), verbose=verbose)
    os.umask(0o077)
    asyncio.run(serve_cluster_page(**options))
