"""What `tranche agent` hosts beside the inventory: each part brings its options and is built when the agent starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


PARTS: tuple[AgentPart, ...] = ()
