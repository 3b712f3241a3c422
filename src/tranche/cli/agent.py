"""`tranche agent`: serve this node of a Kubernetes cluster.

Its options are its own, those of its parts, and the flags that NVIDIA's device plugin takes.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.options import DurationType, extra_missing
from tranche.cli.runtime import Settings, TrancheCommand, open_host, register_places
from tranche.cli.service_options import (
    HEALTH_OPTIONS,
    LOG_OPTIONS,
    TIER_OPTION,
    absolute_path,
    cluster_options,
    log_as_json,
    metric_names_option,
    port_option,
)
from tranche.core.errors import PluginConfigInvalid, UsageError
from tranche.kubernetes.device_plugin.settings import (
    SETTINGS,
    UNSUPPORTED,
    ConfigOption,
    FallbackStrategy,
    UnsupportedOption,
    ValueKind,
)

if TYPE_CHECKING:
    from tranche.boot.unit import NodeInstallation
    from tranche.kubernetes.agent.metrics_server import MetricsSettings
    from tranche.kubernetes.claims.allocation_backend import AllocationBackend
    from tranche.kubernetes.device_plugin.config_source import StartSettings

AGENT_OPTIONS = (
    click.Option(
        ["--node-name"],
        metavar="NAME",
        envvar="NODE_NAME",
        help="Name of this node in the cluster. Default: $NODE_NAME, or the hostname.",
    ),
    *cluster_options("the agent and its ConfigMaps"),
    click.Option(
        ["--daemon-set"],
        metavar="NAME",
        envvar="TRANCHE_DAEMON_SET",
        default="tranche-agent",
        show_default=True,
        help="DaemonSet of the agents. --max-unavailable applies to its nodes. If this DaemonSet is deleted, the agents "
        "remove their files.",
    ),
    click.Option(
        ["--pod-resources-socket"],
        metavar="FILE",
        type=click.Path(path_type=Path),
        default="/var/lib/kubelet/pod-resources/kubelet.sock",
        show_default=True,
        help="Kubelet socket that lists each pod's devices.",
    ),
    click.Option(
        ["--refresh-seconds"],
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="Maximum time between two GPU checks, in seconds.",
    ),
    *HEALTH_OPTIONS,
    click.Option(
        ["--idle-without-gpu"],
        is_flag=True,
        help="On a machine without an NVIDIA GPU, report ready and look for a GPU every minute. Default: report not ready.",
    ),
    click.Option(
        ["--stand-by"],
        is_flag=True,
        help="Report ready while another agent is serving this machine, and take over when that agent exits. Default: "
        "report ready only after taking over.",
    ),
    click.Option(
        ["--host-root"],
        type=click.Path(path_type=Path),
        envvar="HOST_ROOT_MOUNT",
        default="/host",
        show_default=True,
        help="Path in the container where the host's root (for --with-reboot) or the host folders for --boot-program are "
        "mounted.",
    ),
    click.Option(
        ["--boot-program"],
        metavar="PATH",
        help="Path of the tranche program on the host. The agent installs the systemd unit for tranche boot, which runs this "
        "program. The agent removes the unit if you remove this option from its DaemonSet, or delete the DaemonSet.",
    ),
    click.Option(
        ["--boot-partition"],
        metavar="TEXT",
        default="",
        help="Value of MIG_PARTITION in the host's /etc/default/mig. The agent does not overwrite a file that it did not write.",
    ),
    click.Option(
        ["--boot-timeout"],
        type=DurationType(),
        metavar="TIME",
        help="Maximum time that the unit waits for the driver, such as 30s or 10m. Default: 2m.",
    ),
    click.Option(
        ["--tell-view"],
        is_flag=True,
        help="Publish the node's GPUs, slices and holders in a lease, for the cluster dashboard and the controller.",
    ),
    *LOG_OPTIONS,
)

PART_OPTIONS: Mapping[str, tuple[click.Option, ...]] = {
    "device-plugin": (
        click.Option(
            ["--cdi-folder"],
            type=click.Path(path_type=Path),
            default="/var/run/cdi",
            show_default=True,
            help="Folder for the CDI specifications of claims and CDI strategies.",
        ),
    ),
    "mig-manager": (
        click.Option(
            ["--layouts"],
            metavar="NAME",
            envvar="TRANCHE_LAYOUTS",
            default="tranche-layouts",
            show_default=True,
            help="ConfigMap with layouts under the config.yaml key. Without it, a node uses layouts generated for its GPUs.",
        ),
        click.Option(
            ["--default-layout"],
            metavar="NAME",
            envvar="TRANCHE_DEFAULT_LAYOUT",
            default="",
            help="Layout for nodes without the nvidia.com/mig.config label. Default: leave these nodes unchanged.",
        ),
        click.Option(
            ["--in-use"],
            type=click.Choice(["wait", "refuse", "drain"]),
            envvar="TRANCHE_IN_USE",
            default="wait",
            show_default=True,
            help="Action if a slice in use blocks a layout: wait until it is free, refuse the layout, or drain (evict the pod).",
        ),
        click.Option(
            ["--with-reboot"],
            is_flag=True,
            envvar="WITH_REBOOT",
            help="Restart the machine if only a restart can change a GPU's MIG mode.",
        ),
        click.Option(
            ["--operator-namespace"],
            metavar="NAME",
            multiple=True,
            envvar="OPERATOR_NAMESPACES",
            default=("gpu-operator", "kube-system"),
            help="Additional namespace with pods of NVIDIA's MIG manager or operands; repeatable. Default: gpu-operator and "
            "kube-system.",
        ),
        click.Option(
            ["--max-unavailable"],
            metavar="N|N%",
            envvar="TRANCHE_MAX_UNAVAILABLE",
            default="",
            help="Maximum number or percentage of nodes that can change their layouts at once. Default: no limit.",
        ),
    ),
    "feature-labels": (),
    "dra": (
        click.Option(
            ["--kubelet-folder"],
            type=click.Path(path_type=Path),
            default="/var/lib/kubelet",
            show_default=True,
            help="Kubelet folder that contains the DRA driver's sockets.",
        ),
        click.Option(
            ["--pod-uid"],
            metavar="UID",
            envvar="POD_UID",
            default="",
            help="UID of the agent's pod, which distinguishes the sockets of two agents on one node. Default: $POD_UID.",
        ),
        TIER_OPTION,
    ),
    "metrics": (
        port_option("--metrics-port", 9441, "Port for /metrics on the --health-host address"),
        metric_names_option("--metrics-names"),
    ),
}
"""The parts of the agent, each with its options; --without takes these names."""


def _option(setting: ConfigOption) -> click.Option:
    variables = ", ".join(f"${name}" for name in setting.environment)
    text = f"{setting.help} [{variables}]"
    names = [setting.flag, *setting.aliases]
    if setting.kind is ValueKind.LIST:
        return click.Option(names, multiple=True, metavar="NAME", help=text)
    if setting.kind is ValueKind.BOOLEAN:
        # As Go reads it: the flag alone means true; a value follows `=`.
        return click.Option(names, is_flag=False, flag_value="true", metavar="BOOL", help=text)
    if setting.kind is ValueKind.NUMBER:
        return click.Option(names, is_flag=False, flag_value="10", metavar="N", help=text)
    if setting.kind is ValueKind.PERCENT:
        return click.Option(names, metavar="PERCENT", help=text)
    metavar = "|".join(setting.choices) if setting.choices else "TEXT"
    return click.Option(names, metavar=metavar, help=text)


def _refused(setting: UnsupportedOption) -> click.Option:
    if setting.boolean:
        return click.Option([setting.flag], is_flag=False, flag_value="true", hidden=True)
    return click.Option([setting.flag], hidden=True)


PLUGIN_OPTIONS = (
    *map(_option, SETTINGS),
    *(_refused(setting) for setting in UNSUPPORTED if setting.flag),
    click.Option(
        ["--config-file"],
        metavar="FILE",
        envvar="CONFIG_FILE",
        help="Configuration file in the v1 format of NVIDIA's device plugin. [$CONFIG_FILE]",
    ),
    click.Option(
        ["--plugin-config-map"],
        metavar="NAME",
        envvar="PLUGIN_CONFIG_MAP",
        default="",
        help="ConfigMap with configuration files, instead of --config-file. The nvidia.com/device-plugin.config node "
        "label names the key.",
    ),
    click.Option(
        ["--default-config"],
        metavar="KEY",
        envvar="DEFAULT_CONFIG",
        default="",
        help="Key in the plugin's ConfigMap for nodes without the nvidia.com/device-plugin.config label. [$DEFAULT_CONFIG]",
    ),
    click.Option(
        ["--fallback-strategies"],
        metavar="NAMES",
        envvar="FALLBACK_STRATEGIES",
        default="named,single",
        show_default=True,
        help="Fallbacks to try, in order, if neither the label nor --default-config names a key: named (the `default` key), "
        "single (the only key) or empty (no file). [$FALLBACK_STRATEGIES]",
    ),
)


def plugin_settings(values: Mapping[str, Any], environ: Mapping[str, str]) -> StartSettings:
    """The settings from the options and the environment; the file is read, not checked. UsageError for an unknown fallback."""
    from tranche.kubernetes.device_plugin.config_source import StartSettings
    from tranche.node.files.files import read_text

    flags: dict[str, str | Sequence[str]] = {}
    for flag in [*(setting.flag for setting in SETTINGS), *(refused.flag for refused in UNSUPPORTED if refused.flag)]:
        value = values[flag.removeprefix("--").replace("-", "_")]
        if value is not None and value != ():
            flags[flag] = value
    file: str | None = values["config_file"]
    return StartSettings(
        environment=environ,
        flags=flags,
        file=read_text(file, PluginConfigInvalid) if file is not None else "",
        config_map=values["plugin_config_map"],
        default_key=values["default_config"],
        fallbacks=tuple(_fallback(name.strip()) for name in values["fallback_strategies"].split(",")),
    )


def _fallback(name: str) -> FallbackStrategy:
    if name not in tuple(FallbackStrategy):
        raise UsageError(f"--fallback-strategies: '{name}' is not one of {', '.join(FallbackStrategy)}")
    return FallbackStrategy(name)


_OPTIONS = [
    *AGENT_OPTIONS,
    click.Option(
        ["--without"],
        type=click.Choice(tuple(PART_OPTIONS)),
        multiple=True,
        help="Omit a part of the agent, for example if another program does the same job; repeatable.",
    ),
    *PLUGIN_OPTIONS,
    *(option for options in PART_OPTIONS.values() for option in options),
]


@click.command("agent", cls=TrancheCommand, params=_OPTIONS)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Run the agent on a Kubernetes node until SIGTERM.

    The chart runs one agent on each GPU node, in a DaemonSet.
    """
    settings = context.find_object(Settings)
    assert settings is not None
    try:
        from tranche.kubernetes.agent import idle
        from tranche.kubernetes.serving import logs

        logs.set_up(sys.stderr, as_json=log_as_json(values["log_format"]), verbose=values["verbose"])
        if values["idle_without_gpu"] and not idle.idle_until_gpu(
            values["health_host"], values["health_port"], idle.machine_has_gpu
        ):
            return
        from tranche.kubernetes.agent.process import AgentOptions, run_agent
        from tranche.kubernetes.mig_manager.drain import InUsePolicy
        from tranche.kubernetes.mig_manager.manager import MigSettings
        from tranche.kubernetes.rollout.ticket import parse_budget
    except ModuleNotFoundError as error:
        raise extra_missing("'tranche agent'", "kubernetes", error) from error
    options = AgentOptions(
        node_name=values["node_name"] or platform.node().lower(),
        kubeconfig=values["kubeconfig"],
        namespace=values["namespace"],
        pod_resources_socket=values["pod_resources_socket"],
        health_host=values["health_host"],
        health_port=values["health_port"],
        period=values["refresh_seconds"],
        plugin=plugin_settings(values, os.environ),
        metrics=_metrics(values),
        daemon_set=values["daemon_set"],
        cdi_folder=values["cdi_folder"],
        kubelet_folder=values["kubelet_folder"],
        pod_uid=values["pod_uid"],
        without=values["without"],
        layouts=MigSettings(
            config_map=values["layouts"],
            default_layout=values["default_layout"],
            policy=InUsePolicy(values["in_use"]),
            with_reboot=values["with_reboot"],
            host_root=values["host_root"],
            operator_namespaces=frozenset(values["operator_namespace"]),
            heeds_mode="dra" not in values["without"],
        ),
        budget=parse_budget(values["max_unavailable"]) if values["max_unavailable"] else None,
        tell_view=values["tell_view"],
        boot=_boot(values),
        stand_by=values["stand_by"],
        backend=_backend(values),
    )
    if "mig-manager" not in values["without"]:
        _refuse_to_stop_host_services(os.environ)
    if values["with_reboot"] and not values["host_root"].is_dir():
        raise UsageError(
            f"--with-reboot needs the host's root folder, but there is none at {values['host_root']}",
            hint="mount it there (the chart does so with migManager.withReboot=true), or give its path with --host-root",
        )
    # Sockets and state belong to this process alone: nothing else on a cluster's node reads them.
    os.umask(0o077)
    register_places(settings, anywhere=True).refuse_shared()
    with open_host(settings, anywhere=True) as host:
        host.places.keep_private()
        run_agent(host, options, os.environ)


def _backend(values: dict[str, Any]) -> AllocationBackend | None:
    """The administrator's choice; None to find out."""
    from tranche.kubernetes.claims.allocation_backend import AllocationBackend, backend_by_word

    return AllocationBackend.NONE if "dra" in values["without"] else backend_by_word(values["tier"])


def _metrics(values: dict[str, Any]) -> MetricsSettings | None:
    from tranche.kubernetes.agent.metrics_server import MetricsSettings
    from tranche.metrics.samples import MetricNameSet

    if "metrics" in values["without"]:
        return None
    return MetricsSettings(
        values["health_host"],
        values["metrics_port"],
        MetricNameSet(values["metrics_names"]),
        default_layout="" if "mig-manager" in values["without"] else values["default_layout"],
    )


def _boot(values: dict[str, Any]) -> NodeInstallation | None:
    """What the agent installs for the next boot; None without --boot-program. UsageError for a word the unit cannot hold."""
    if values["boot_program"] is None:
        return None
    from tranche.boot.unit import WAIT_SECONDS, NodeInstallation
    from tranche.core.partition import parse_partition

    partition, seconds = values["boot_partition"], values["boot_timeout"]
    if partition:
        parse_partition(partition)
    return NodeInstallation(
        values["host_root"],
        absolute_path(values["boot_program"], "--boot-program"),
        partition,
        WAIT_SECONDS if seconds is None else seconds,
    )


def _refuse_to_stop_host_services(environ: Mapping[str, str]) -> None:
    """UsageError if NVIDIA's MIG manager would stop services of the host during a change, which Tranche does not do."""
    variable = "WITH_SHUTDOWN_HOST_GPU_CLIENTS"
    if environ.get(variable, "").lower() in ("1", "t", "true"):
        raise UsageError(
            f"{variable} is not supported: the agent does not stop host services",
            hint="remove the variable, and stop services that use the GPUs (dcgm, nvsm) before a layout change",
        )
