"""`tranche cluster-dashboard`: a Kubernetes cluster as a page in browsers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from tranche.cli.extras import extra_missing
from tranche.cli.runtime import TrancheCommand
from tranche.cli.service_options import (
    ANY_PORT,
    SERVICE_KUBECONFIG_HELP,
    SERVICE_NAMESPACE_HELP,
    health_options,
    log_as_json,
    log_options,
)


@click.command("cluster-dashboard", cls=TrancheCommand)
@click.option("--kubeconfig", metavar="FILE", help=SERVICE_KUBECONFIG_HELP)
@click.option(
    "--namespace",
    metavar="NAME",
    envvar="POD_NAMESPACE",
    default="",
    help=f"Namespace of the agents. {SERVICE_NAMESPACE_HELP}",
)
@click.option("--name", metavar="TEXT", default="cluster", show_default=True, help="Name of the cluster on the pages.")
@click.option("--listen", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address of the server.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=8899,
    show_default=True,
    help=f"Port of the server; {ANY_PORT}.",
)
@click.option(
    "--host",
    metavar="NAME",
    multiple=True,
    help="Additional hostname of the server, such as that of an ingress; repeatable.",
)
@click.option(
    "--proxy-secret",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with a secret. A proxy that sends it as X-Tranche-Proxy-Secret may name the user. Default: trust no proxy.",
)
@click.option(
    "--proxy-user-header",
    metavar="NAME",
    default="X-Remote-User",
    show_default=True,
    help="Header with the name of the user, for --proxy-secret.",
)
@click.option(
    "--proxy-group-header",
    metavar="NAME",
    default="X-Remote-Group",
    show_default=True,
    help="Header with one group of the user, for --proxy-secret; the proxy may repeat it.",
)
@click.option(
    "--act",
    is_flag=True,
    help="Let users cordon nodes, change layouts and delete pods with their own tokens. Default: read-only.",
)
@click.option(
    "--proxy-act",
    is_flag=True,
    help="Let users that the proxy names act too, if their RBAC allows it. The server's account acts for them. "
    "Needs --act and --proxy-secret.",
)
@health_options
@log_options
def command(
    kubeconfig: str | None,
    namespace: str,
    name: str,
    listen: str,
    port: int,
    host: tuple[str, ...],
    proxy_secret: Path | None,
    proxy_user_header: str,
    proxy_group_header: str,
    act: bool,
    proxy_act: bool,
    health_host: str,
    health_port: int,
    log_format: str,
    verbose: bool,
) -> None:
    """Serve a live page of a Kubernetes cluster until SIGTERM.

    The page shows nodes, GPUs, slices, waiting pods with their reasons, and events. Its data comes from agents with
    --tell-view. Users sign in with a Kubernetes token. They see names in namespaces where they can list pods, and
    "another namespace" otherwise. The chart runs the server as a Deployment, with dashboard.enabled.
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
    asyncio.run(
        serve_cluster_page(
            kubeconfig=kubeconfig,
            namespace=namespace,
            name=name,
            host=listen,
            port=port,
            health_host=health_host,
            health_port=health_port,
            hosts=host,
            proxy_secret=proxy_secret,
            proxy_user_header=proxy_user_header,
            proxy_group_header=proxy_group_header,
            act=act,
            proxy_act=proxy_act,
        )
    )
