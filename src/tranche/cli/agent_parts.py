"""What `tranche agent` hosts beside the inventory: each part brings its options and is built when the agent starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
)
