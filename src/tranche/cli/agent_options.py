"""The options of `tranche agent`: its own, those of its parts, and the flags that NVIDIA's device plugin takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.duration import DurationType
from tranche.cli.service_options import HEALTH_OPTIONS, LOG_OPTIONS
from tranche.core.errors import PluginConfigInvalid, UsageError
from tranche.kubernetes.device_plugin.selection import FallbackStrategy
from tranche.kubernetes.device_plugin.settings import SETTINGS, UNSUPPORTED, ConfigOption, UnsupportedOption, ValueKind

if TYPE_CHECKING:
    from tranche.kubernetes.device_plugin.config_source import StartSettings


TIER_OPTION = click.Option(
    ["--tier"],
    type=click.Choice(["auto", "claims", "gates"]),
    default="auto",
    show_default=True,
    help="How the cluster gives shares by demand: by claims, or by scheduling gates; auto: as its version says.",
)

AGENT_OPTIONS = (
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
        ["--daemon-set"],
        metavar="NAME",
        envvar="TRANCHE_DAEMON_SET",
        default="tranche-agent",
        show_default=True,
        help="The agents' DaemonSet: how many nodes there are; when it is deleted, CDI specifications go with the agents.",
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
        help="How often to look at the GPUs when nothing else prompts it.",
    ),
    *HEALTH_OPTIONS,
    click.Option(
        ["--idle-without-gpu"],
        is_flag=True,
        help="On a machine without a GPU of NVIDIA serve nothing, be ready, and look again each minute; else not ready.",
    ),
    click.Option(
        ["--stand-by"],
        is_flag=True,
        help="Be ready while another agent serves this machine, and take over when that one ends; else not ready.",
    ),
    click.Option(
        ["--host-root"],
        type=click.Path(path_type=Path),
        envvar="HOST_ROOT_MOUNT",
        default="/host",
        show_default=True,
        help="Where the host's root is mounted, for --with-reboot, or some of its folders, for --boot-program.",
    ),
    click.Option(
        ["--boot-program"],
        metavar="PATH",
        help="Install the systemd unit of 'tranche boot' on the host, with this program of the host's; the agent removes it "
        "when its DaemonSet has this option no more, or is deleted.",
    ),
    click.Option(
        ["--boot-partition"],
        metavar="TEXT",
        default="",
        help="What the host's /etc/default/mig is to ask for, unless the host has such a file of its own.",
    ),
    click.Option(
        ["--boot-timeout"],
        type=DurationType(),
        metavar="TIME",
        help="How long the unit waits for a driver that is late. Default: 2m.",
    ),
    click.Option(
        ["--tell-view"],
        is_flag=True,
        help="Tell of the node's GPUs, slices and holders in a lease, for the page of the cluster; else nobody is told.",
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
            help="Where CDI specifications are written, for claims and under a CDI strategy.",
        ),
    ),
    "mig-manager": (
        click.Option(
            ["--layouts"],
            metavar="NAME",
            envvar="TRANCHE_LAYOUTS",
            default="tranche-layouts",
            show_default=True,
            help="The ConfigMap of layouts, key config.yaml; without it a node has the layouts of its own GPUs.",
        ),
        click.Option(
            ["--default-layout"],
            metavar="NAME",
            envvar="TRANCHE_DEFAULT_LAYOUT",
            default="",
            help="The layout of a node whose label nvidia.com/mig.config names none; else such a node is left as it is.",
        ),
        click.Option(
            ["--in-use"],
            type=click.Choice(["wait", "refuse", "drain"]),
            envvar="TRANCHE_IN_USE",
            default="wait",
            show_default=True,
            help="What to do about a slice in use that is in a layout's way: wait for its end, refuse, evict its pod.",
        ),
        click.Option(
            ["--with-reboot"],
            is_flag=True,
            envvar="WITH_REBOOT",
            help="Restart the machine for a MIG mode that changes no other way.",
        ),
        click.Option(
            ["--operator-namespace"],
            metavar="NAME",
            multiple=True,
            envvar="OPERATOR_NAMESPACES",
            default=("gpu-operator", "kube-system"),
            help="A namespace, besides the agent's own, where pods may be NVIDIA's MIG manager or operands; repeatable. "
            "Else: gpu-operator, kube-system.",
        ),
        click.Option(
            ["--max-unavailable"],
            metavar="N|N%",
            envvar="TRANCHE_MAX_UNAVAILABLE",
            default="",
            help="How many nodes may change their layout at once, a number or a part of all; else as many as are told to.",
        ),
    ),
    "feature-labels": (),
    "dra": (
        click.Option(
            ["--kubelet-folder"],
            type=click.Path(path_type=Path),
            default="/var/lib/kubelet",
            show_default=True,
            help="The kubelet's folder, where it looks for drivers of dynamic resource allocation.",
        ),
        click.Option(
            ["--pod-uid"],
            metavar="UID",
            envvar="POD_UID",
            default="",
            help="The uid of the agent's pod, by which two agents of one node have sockets of their own.",
        ),
        TIER_OPTION,
    ),
    "metrics": (
        click.Option(
            ["--metrics-port"],
            type=click.IntRange(0, 65535),
            default=9441,
            show_default=True,
            help="The port of /metrics, on the address of --health-host; 0: any.",
        ),
        click.Option(
            ["--metrics-names"],
            type=click.Choice(["tranche", "dcgm", "both"]),
            default="tranche",
            show_default=True,
            help="Whose names metrics have: Tranche's, those of dcgm-exporter, or both.",
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
        # As Go reads it: the flag alone means true, a value goes after `=`.
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
        help="The device plugin's v1 configuration file. [$CONFIG_FILE]",
    ),
    click.Option(
        ["--plugin-config-map"],
        metavar="NAME",
        envvar="PLUGIN_CONFIG_MAP",
        default="",
        help="A ConfigMap of such files instead; the node's label nvidia.com/device-plugin.config names the key.",
    ),
    click.Option(
        ["--default-config"],
        metavar="KEY",
        envvar="DEFAULT_CONFIG",
        default="",
        help="The key for nodes without the label. [$DEFAULT_CONFIG]",
    ),
    click.Option(
        ["--fallback-strategies"],
        metavar="NAMES",
        envvar="FALLBACK_STRATEGIES",
        default="named,single",
        show_default=True,
        help="Without either: the key `default` (named), the only key (single), no file (empty). [$FALLBACK_STRATEGIES]",
    ),
)


def plugin_settings(values: Mapping[str, Any], environ: Mapping[str, str]) -> StartSettings:
    """What the options and the environment say; the file is read, not checked. UsageError for an unknown fallback."""
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
