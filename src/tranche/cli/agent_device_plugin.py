"""Builds the device plugin of `tranche agent` for the machine that is meant: one with a driver, or a simulated one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tranche.hardware.nodes import DeviceFiles, DriverFiles
from tranche.hardware.nvml_links import read_links
from tranche.hardware.nvml_recovery import needs_recovery
from tranche.kubernetes.device_plugin.announcements import Announcer
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.device_plugin.plugin import DevicePlugin, Machine
from tranche.kubernetes.services import NodeServices


def build_device_plugin(services: NodeServices, *, cdi_folder: Path) -> DevicePlugin:
    """The component."""
    return DevicePlugin(
        services.plugin_config,
        services.inventory,
        services.gpu_events,
        services.node,
        Machine(_device_files, read_links, needs_recovery),
        Announcer(services.api, services.node, clock=time.monotonic),
        clock=time.monotonic,
        cdi_folder=cdi_folder,
    )


def _device_files(config: PluginConfig) -> DeviceFiles:
    if simulated := os.environ.get("TRANCHE_SIM_STATE"):
        from tranche.hardware.simulator.build import ensure_built
        from tranche.hardware.simulator.device_files import SimulatedDeviceFiles

        return SimulatedDeviceFiles(Path(simulated), ensure_built())
    in_container = Path(config.driver_root_in_container)
    return DriverFiles(
        driver_root=config.driver_root,
        dev_root=config.dev_root or config.driver_root,
        seen_at=str(in_container) if in_container.is_dir() else config.driver_root,
        hook_path=config.cdi_hook_path,
    )
