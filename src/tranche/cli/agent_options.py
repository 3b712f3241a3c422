"""The options of `tranche agent`: its own, those of its parts, and the flags that NVIDIA's device plugin takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.duration import DurationType
from tranche.cli.service_options import (
    ANY_PORT,
    HEALTH_OPTIONS,
    LOG_OPTIONS,
    METRIC_NAMES_HELP,
    SERVICE_KUBECONFIG_HELP,
    SERVICE_NAMESPACE_HELP,
    TIER_HELP,
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
    from tranche.kubernetes.device_plugin.config_source import StartSettings


TIER_OPTION = click.Option(
    ["--tier"],
    type=click.Choice(["auto", "claims", "gates"]),
    default="auto",
    show_default=True,
    help=TIER_HELP,
)

AGENT_OPTIONS = (
    click.Option(
        ["--node-name"],
        metavar="NAME",
        envvar="NODE_NAME",
        help="Name of this node in the cluster. Default: $NODE_NAME, or the hostname.",
    ),
    click.Option(["--kubeconfig"], metavar="FILE", help=SERVICE_KUBECONFIG_HELP),
    click.Option(
        ["--namespace"],
        metavar="NAME",
        envvar="POD_NAMESPACE",
        default="",
        help=f"Namespace of the agent and its ConfigMaps. {SERVICE_NAMESPACE_HELP}",
    ),
    click.Option(
        ["--daemon-set"],
        metavar="NAME",
        envvar="TRANCHE_DAEMON_SET",
        default="tranche-agent",
        show_default=True,
        help="DaemonSet of the agents. --max-unavailable counts its nodes, and its deletion makes the agents remove their files.",
    ),
    click.Option(
        ["--pod-resources-socket"],
        metavar="FILE",
        type=click.Path(path_type=Path),
        default="/var/lib/kubelet/pod-resources/kubelet.sock",
        show_default=True,
        help="Socket of the kubelet that lists the devices of each pod.",
    ),
    click.Option(
        ["--refresh-seconds"],
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="Maximum time between two checks of the GPUs, in seconds.",
    ),
    *HEALTH_OPTIONS,
    click.Option(
        ["--idle-without-gpu"],
        is_flag=True,
        help="On a machine without an NVIDIA GPU, be ready and check for a GPU every minute. Default: not ready.",
    ),
    click.Option(
        ["--stand-by"],
        is_flag=True,
        help="Be ready while another agent serves this machine, and take over when it ends. Default: not ready until then.",
    ),
    click.Option(
        ["--host-root"],
        type=click.Path(path_type=Path),
        envvar="HOST_ROOT_MOUNT",
        default="/host",
        show_default=True,
        help="Mount point of the host's root (--with-reboot), or of the host's folders that --boot-program needs.",
    ),
    click.Option(
        ["--boot-program"],
        metavar="PATH",
        help="Install the systemd unit of 'tranche boot' on the host; PATH is the program tranche there. The agent removes "
        "the unit when its DaemonSet loses this option or is deleted.",
    ),
    click.Option(
        ["--boot-partition"],
        metavar="TEXT",
        default="",
        help="MIG_PARTITION for the host's /etc/default/mig. A file that the agent did not write stays.",
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
        help="Publish the node's GPUs, slices and holders in a lease, for tranche cluster-dashboard.",
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
            help="Folder for the CDI specifications of claims and of CDI strategies.",
        ),
    ),
    "mig-manager": (
        click.Option(
            ["--layouts"],
            metavar="NAME",
            envvar="TRANCHE_LAYOUTS",
            default="tranche-layouts",
            show_default=True,
            help="ConfigMap with layouts under the key config.yaml. Without it, a node uses layouts generated for its GPUs.",
        ),
        click.Option(
            ["--default-layout"],
            metavar="NAME",
            envvar="TRANCHE_DEFAULT_LAYOUT",
            default="",
            help="Layout for nodes without the label nvidia.com/mig.config. Default: leave these nodes unchanged.",
        ),
        click.Option(
            ["--in-use"],
            type=click.Choice(["wait", "refuse", "drain"]),
            envvar="TRANCHE_IN_USE",
            default="wait",
            show_default=True,
            help="If a slice in use blocks a layout: wait until it is free, refuse the layout, or drain (evict the pod).",
        ),
        click.Option(
            ["--with-reboot"],
            is_flag=True,
            envvar="WITH_REBOOT",
            help="Reboot the machine if a MIG mode cannot change otherwise.",
        ),
        click.Option(
            ["--operator-namespace"],
            metavar="NAME",
            multiple=True,
            envvar="OPERATOR_NAMESPACES",
            default=("gpu-operator", "kube-system"),
            help="Namespace, besides the agent's own, with pods of NVIDIA's MIG manager or operands; repeatable. "
            "Default: gpu-operator and kube-system.",
        ),
        click.Option(
            ["--max-unavailable"],
            metavar="N|N%",
            envvar="TRANCHE_MAX_UNAVAILABLE",
            default="",
            help="Maximum number or percentage of nodes that change their layout at the same time. Default: no limit.",
        ),
    ),
    "feature-labels": (),
    "dra": (
        click.Option(
            ["--kubelet-folder"],
            type=click.Path(path_type=Path),
            default="/var/lib/kubelet",
            show_default=True,
            help="Folder of the kubelet, for the sockets of the driver for claims.",
        ),
        click.Option(
            ["--pod-uid"],
            metavar="UID",
            envvar="POD_UID",
            default="",
            help="UID of the agent's pod. It keeps the sockets of two agents on one node apart. Default: $POD_UID.",
        ),
        TIER_OPTION,
    ),
    "metrics": (
        click.Option(
            ["--metrics-port"],
            metavar="PORT",
            type=click.IntRange(0, 65535),
            default=9441,
            show_default=True,
            help=f"Port of /metrics at the address of --health-host; {ANY_PORT}.",
        ),
        click.Option(
            ["--metrics-names"],
            type=click.Choice(["tranche", "dcgm", "both"]),
            default="tranche",
            show_default=True,
            help=METRIC_NAMES_HELP,
        ),
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
        help="ConfigMap of such files, instead of --config-file. The node label nvidia.com/device-plugin.config names the key.",
    ),
    click.Option(
        ["--default-config"],
        metavar="KEY",
        envvar="DEFAULT_CONFIG",
        default="",
        help="Key of the ConfigMap for nodes without the label. [$DEFAULT_CONFIG]",
    ),
    click.Option(
        ["--fallback-strategies"],
        metavar="NAMES",
        envvar="FALLBACK_STRATEGIES",
        default="named,single",
        show_default=True,
        help="Fallbacks without label and default: the key `default` (named), the only key (single), no file (empty). "
        "[$FALLBACK_STRATEGIES]",
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
