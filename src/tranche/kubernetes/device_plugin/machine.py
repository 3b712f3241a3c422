"""What the device plugin asks of the machine beside the inventory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tranche.hardware.nodes import DeviceFiles
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.device_plugin.preferred import Links


@dataclass(frozen=True, slots=True)
class Machine:
    """Callables, each asked when its answer is needed. `links` blocks.

    `mps_pipes` gives the folder of a device's MPS daemon by the device's UUID; `mps_tied` says why daemons end with the agent, ""
    when they outlive it.
    """

    files: Callable[[PluginConfig], DeviceFiles]
    links: Callable[[], Links]
    mps_pipes: Callable[[str], Path]
    mps_tied: Callable[[], str]
