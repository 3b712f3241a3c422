"""`tranche cluster-dashboard`: a Kubernetes cluster as a page in browsers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tranche.cli.extras import extra_missing
from tranche.cli.runtime import TrancheCommand
from tranche.cli.service_options import health_options, log_as_json, log_options


@click.command("cluster-dashboard", cls=TrancheCommand)
@click.option("--kubeconfig", metavar="FILE", help="How to reach the API server; else $KUBECONFIG, else as a pod.")
@click.option(
    "--namespace", metavar="NAME", envvar="POD_NAMESPACE", default="", help="Where the agents tell of their nodes."
)
@click.option("--name", metavar="TEXT", default="cluster", show_default=True, help="What the pages call the cluster.")
@click.option("--listen", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="The address to serve on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8899, show_default=True, help="Its port; 0: any.")
@click.option(
    "--host",
    metavar="NAME",
    multiple=True,
    help="A name by which browsers call the server, as an ingress has it, beside those of the loopback; repeatable.",
)
@click.option(
    "--proxy-secret",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Trust a proxy that sends this secret as X-Tranche-Proxy-Secret to say who asks; else no proxy is trusted.",
)
@click.option(
    "--proxy-user-header",
    metavar="NAME",
    default="X-Remote-User",
    show_default=True,
    help="The header in which it names the user.",
)
@click.option(
    "--proxy-group-header",
    metavar="NAME",
    default="X-Remote-Group",
    show_default=True,
    help="The header in which it names one of the user's groups; once for each.",
)
@click.option(
    "--act", is_flag=True, help="Let viewers act with their own tokens: cordon, layouts, deleting pods; else only look."
)
@click.option(
    "--proxy-act",
    is_flag=True,
    help="With --act and --proxy-secret: act for whom the proxy names, too, with the server's account, if Kubernetes lets him.",
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
    """Serve a live page of a Kubernetes cluster to its people until SIGTERM: nodes, GPUs, slices, who waits and why, events.

    A Deployment in production, made by the chart under dashboard.enabled. It shows what agents tell that run with --tell-view.
    Each viewer enters with a token of Kubernetes and sees the names in namespaces whose pods he may list; the rest is
    "another namespace". Logs go to stderr, as JSON lines unless a person reads them.
    """
    try:
        from tranche.dashboard.background_writer import BackgroundWriter
        from tranche.dashboard.cluster.cluster_server import ClusterPageOptions, serve_cluster_page
        from tranche.kubernetes.serving import logs
    except ModuleNotFoundError as error:
        extra = "dashboard" if error.name in ("starlette", "uvicorn") else "kubernetes"
        raise extra_missing("'tranche cluster-dashboard'", extra, error) from error
    logs.set_up(BackgroundWriter(sys.stderr.fileno()), as_json=log_as_json(log_format), verbose=verbose)
    os.umask(0o077)
    serve_cluster_page(
        ClusterPageOptions(
            kubeconfig=kubeconfig,
            namespace=namespace,
            name=name,
            host=listen,
            port=port,
            health_host=health_host,
            health_port=health_port,
            hosts=host,
            proxy_secret=proxy_secret,
            user_header=proxy_user_header,
            group_header=proxy_group_header,
            act=act,
            proxy_act=proxy_act,
        )
    )
