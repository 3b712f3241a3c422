"""`tranche agent`: serve this node of a Kubernetes cluster."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.agent_parts import PARTS, AgentPart, refuse_to_stop_host_services
from tranche.cli.agent_plugin_options import PLUGIN_OPTIONS, plugin_settings
from tranche.cli.runtime import open_host
from tranche.cli.settings import Settings, TrancheCommand
from tranche.core.errors import UsageError

if TYPE_CHECKING:
    from tranche.kubernetes.component import Component
    from tranche.kubernetes.services import NodeServices

_OPTIONS = [
    click.Option(
        ["--node-name"],
        metavar="NAME",
        envvar="NODE_NAME",
        help="This node's name in the cluster; else the host's name.",
    ),
    click.Option(
        ["--kubeconfig"], metavar="FILE", help="How to reach the API server; else $KUBECONFIG, else as a pod."
    ),
    click.Option(
        ["--namespace"], metavar="NAME", envvar="POD_NAMESPACE", default="", help="Where ConfigMaps are looked for."
    ),
    click.Option(
        ["--pod-resources-socket"],
        metavar="FILE",
        type=click.Path(path_type=Path),
        default="/var/lib/kubelet/pod-resources/kubelet.sock",
        show_default=True,
        help="Where the kubelet says which pod holds which device.",
    ),
    click.Option(
        ["--refresh-seconds"],
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="How often the GPUs are looked at when nothing else asks for it.",
    ),
    click.Option(["--health-host"], default="", help="The address to serve /healthz and /readyz on; else all."),
    click.Option(
        ["--health-port"], type=click.IntRange(0, 65535), default=9440, show_default=True, help="Their port; 0: any."
    ),
    click.Option(["--log-format"], type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True),
    click.Option(["--verbose", "-v"], is_flag=True, help="Log what is done in detail."),
]


def _agent(context: click.Context, **values: Any) -> None:
    settings = context.find_object(Settings)
    assert settings is not None
    try:
        from tranche.kubernetes.agent import logs
        from tranche.kubernetes.agent.process import AgentOptions, run_agent
    except ModuleNotFoundError as error:
        raise UsageError(
            f"'tranche agent' needs the Python package '{error.name}', which is not installed",
            hint="install Tranche with its extra: tranche[kubernetes]",
        ) from error
    as_json = values["log_format"] == "json" or (values["log_format"] == "auto" and not sys.stderr.isatty())
    logs.set_up(sys.stderr, as_json=as_json, verbose=values["verbose"])
    options = AgentOptions(
        node_name=values["node_name"] or platform.node().lower(),
        kubeconfig=values["kubeconfig"],
        namespace=values["namespace"],
        pod_resources_socket=values["pod_resources_socket"],
        health_host=values["health_host"],
        health_port=values["health_port"],
        period=values["refresh_seconds"],
        plugin=plugin_settings(values, os.environ),
    )
    if "mig-manager" not in values["without"]:
        refuse_to_stop_host_services(os.environ)
    wanted = [part for part in PARTS if part.name not in values["without"]]
    with open_host(settings) as host:
        run_agent(host, options, [_builder(part, values) for part in wanted], os.environ)


def _builder(part: AgentPart, values: dict[str, Any]) -> Callable[[NodeServices], Component]:
    own = {str(option.name): values[str(option.name)] for option in part.options}
    return partial(_build, part, own)


def _build(part: AgentPart, own: dict[str, Any], services: NodeServices) -> Component:
    return part.build(services, own)


command = TrancheCommand(
    "agent",
    callback=click.pass_context(_agent),
    params=[
        *_OPTIONS,
        click.Option(
            ["--without"],
            type=click.Choice([part.name for part in PARTS]),
            multiple=True,
            help="Leave a part out, where another program does its work.",
        ),
        *PLUGIN_OPTIONS,
        *(option for part in PARTS for option in part.options),
    ],
    help="""Serve this node of a Kubernetes cluster until SIGTERM.

    One process per node, as a DaemonSet in production. Logs go to stderr, as JSON lines unless a person reads them.""",
)
