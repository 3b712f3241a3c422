"""What `tranche agent` hosts beside the inventory: each part brings its options and is built when the agent starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.core.errors import UsageError

if TYPE_CHECKING:
    from tranche.kubernetes.component import Component
    from tranche.kubernetes.services import NodeServices


@dataclass(frozen=True, slots=True)
class AgentPart:
    """One part. `build` gets the value of each of its options by name.

    Modules that define parts import what is heavy inside `build`, so that `tranche agent --help` needs none of it.
    """

    name: str
    options: tuple[click.Option, ...]
    build: Callable[[NodeServices, Mapping[str, Any]], Component]


def _device_plugin(services: NodeServices, values: Mapping[str, Any]) -> Component:
    from tranche.cli.agent_device_plugin import build_device_plugin

    return build_device_plugin(services, cdi_folder=values["cdi_folder"])


def _mig_manager(services: NodeServices, values: Mapping[str, Any]) -> Component:
    from tranche.kubernetes.mig_manager.drain import Policy
    from tranche.kubernetes.mig_manager.manager import MigManager, MigSettings

    settings = MigSettings(
        config_map=values["layouts"],
        policy=Policy(values["in_use"]),
        with_reboot=values["with_reboot"],
        host_root=values["host_root"],
    )
    return MigManager(services, settings)


def _feature_labels(services: NodeServices, values: Mapping[str, Any]) -> Component:
    from tranche.kubernetes.feature_labels.labeler import FeatureLabeler

    return FeatureLabeler(services)


def refuse_to_stop_host_services(environ: Mapping[str, str]) -> None:
    """UsageError where NVIDIA's MIG manager would be told to stop services of the host during a change, which is not done."""
    variable = "WITH_SHUTDOWN_HOST_GPU_CLIENTS"
    if environ.get(variable, "").lower() in ("1", "t", "true"):
        raise UsageError(
            f"{variable} is not supported: the agent stops no services of the host",
            hint="take the variable out; stop what uses the GPUs there (dcgm, nvsm) before a change of layout",
        )


PARTS: tuple[AgentPart, ...] = (
    AgentPart(
        "device-plugin",
        (
            click.Option(
                ["--cdi-folder"],
                type=click.Path(path_type=Path),
                default="/var/run/cdi",
                show_default=True,
                help="Where CDI specifications are written, under a CDI strategy.",
            ),
        ),
        _device_plugin,
    ),
    AgentPart(
        "mig-manager",
        (
            click.Option(
                ["--layouts"],
                metavar="NAME",
                envvar="TRANCHE_LAYOUTS",
                default="tranche-layouts",
                show_default=True,
                help="The ConfigMap of layouts, key config.yaml; without it a node has the layouts of its own GPUs.",
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
                ["--host-root"],
                type=click.Path(path_type=Path),
                envvar="HOST_ROOT_MOUNT",
                default="/host",
                show_default=True,
                help="Where the host's root is mounted, for --with-reboot.",
            ),
        ),
        _mig_manager,
    ),
    AgentPart("feature-labels", (), _feature_labels),
)
