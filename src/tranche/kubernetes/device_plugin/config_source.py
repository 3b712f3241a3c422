"""Where the configuration comes from: a ConfigMap's key, chosen by the node's label and followed, or the start alone."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tranche.core.errors import PluginConfigInvalid
from tranche.hardware.nodes import DeviceFiles, DriverFiles
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.device_plugin.config import (
    PluginConfig,
    exposed,
    read_config,
    why_no_cdi,
    why_not_by_cdi,
    with_strategy,
)
from tranche.kubernetes.device_plugin.settings import CONFIG_LABEL, DEFAULT_FALLBACKS, FallbackStrategy, selected_key
from tranche.kubernetes.latest_value import LatestValue, within
from tranche.kubernetes.node.health import xid_policy
from tranche.kubernetes.node.replicas import ReplicaPolicy
from tranche.kubernetes.node.resources import MigStrategy
from tranche.kubernetes.serving.supervisor import LookResult, Reconciler
from tranche.node.files.files import YamlError, load_yaml

_FIRST_NODE_SECONDS = 10.0
_LOOK_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartSettings:
    """What the process was started with.

    `file` is the text of --config-file. `config_map` is the name of a ConfigMap ("" for none); the node's label, `default_key`
    and `fallbacks` choose its key.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    file: str = ""
    config_map: str = ""
    default_key: str = ""
    fallbacks: tuple[FallbackStrategy, ...] = DEFAULT_FALLBACKS

    def read(self, text: str) -> PluginConfig:
        """The configuration with that text as its file; PluginConfigInvalid otherwise."""
        try:
            document = load_yaml(text)
        except YamlError as error:
            raise PluginConfigInvalid(f"the configuration is not valid YAML: {error}") from error
        config = read_config(document, environment=self.environment, flags=self.flags)
        xid_policy(config.disabled_health_checks, config.enabled_health_checks)
        return config

    def check(self) -> None:
        """Raise PluginConfigInvalid when no node could use this, with any label and ConfigMap."""
        self.read(self.file)

    def choose(self, label: str | None, config_map: Mapping[str, str] | None) -> PluginConfig:
        """The configuration of a node with that label; PluginConfigInvalid otherwise."""
        if not self.config_map:
            return self.read(self.file)
        if config_map is None:
            raise PluginConfigInvalid(
                f"ConfigMap {self.config_map} does not exist", hint="create it, or start the agent without it"
            )
        key = selected_key(label, config_map, default=self.default_key, fallbacks=self.fallbacks)
        return self.read("" if key is None else config_map[key])


def device_files(config: PluginConfig) -> DeviceFiles:
    """The device files of this machine: one with a driver, or a simulated one."""
    if simulated := os.environ.get("TRANCHE_SIM_STATE"):
        from tranche.hardware.nodes import SimulatedDeviceFiles

        return SimulatedDeviceFiles(Path(simulated))
    in_container = Path(config.driver_root_in_container)
    return DriverFiles(
        driver_root=config.driver_root,
        dev_root=config.dev_root or config.driver_root,
        seen_at=str(in_container) if in_container.is_dir() else config.driver_root,
        hook_path=config.cdi_hook_path,
    )


def cdi_obstacle(config: PluginConfig, *, cdi_folder: Path) -> str:
    """Why this agent cannot write a CDI specification through which containers find the driver; "" when it can. Blocks."""
    if not os.access(cdi_folder, os.W_OK):
        return f"the agent cannot write to the folder {cdi_folder}"
    return device_files(config).why_no_cdi()


class ConfigSource:
    """A component: the configuration in effect, which follows the label and the ConfigMap.

    An invalid configuration changes nothing: the previous one stays in effect, and `problem` says what is wrong. `strategy` and
    `sharing` are the parts that concern more than the device plugin. The device-list strategy is `unchosen` only until the node's
    versions are known; `exposed` says what `auto` could not do.
    """

    name = "device-plugin-config"

    def __init__(
        self,
        start: StartSettings,
        api: KubeClient,
        namespace: str,
        node: LatestValue[KubeNode | None],
        *,
        driver_obstacle: Callable[[PluginConfig], str],
    ) -> None:
        """`driver_obstacle` says what of this machine a CDI specification would lack, "" for nothing; it blocks."""
        self.latest: LatestValue[PluginConfig] = LatestValue()
        self.strategy: LatestValue[MigStrategy] = LatestValue()
        self.sharing: LatestValue[ReplicaPolicy] = LatestValue()
        self.problem: LatestValue[str] = LatestValue()
        self.exposed: LatestValue[str] = LatestValue()
        self._driver_obstacle = driver_obstacle
        self._found: tuple[PluginConfig, str] | None = None
        self._reconciler = Reconciler(_log, "cannot choose a configuration", trouble="")
        self._start = start
        self._api = api
        self._namespace = namespace
        self._node = node
        self._config_map: LatestValue[Mapping[str, str] | None] = LatestValue()

    def ready(self) -> Readiness:
        """Ready when a configuration is in effect."""
        if self.latest.synced:
            return Readiness(True)
        return Readiness(
            False, self.problem.value if self.problem.synced else "the configuration has not been read yet"
        )

    def files(self) -> DeviceFiles:
        """The device files of this machine by the configuration in effect."""
        return device_files(self.latest.value)

    async def run(self) -> None:
        """Follow node and ConfigMap until cancelled."""
        await within(_FIRST_NODE_SECONDS, self._node.first())
        async with asyncio.TaskGroup() as group:
            if self._start.config_map:
                group.create_task(self._follow_config_map())
            group.create_task(self._reconciler.run(self._look, (), (self._node.changes(), self._config_map.changes())))

    async def _follow_config_map(self) -> None:
        async for config_map in self._api.watch_config_map(self._namespace, self._start.config_map):
            self._config_map.publish(config_map)

    async def _look(self) -> LookResult:
        if not self._start.config_map:
            await self._choose(None, None)
        elif self._node.synced and self._config_map.synced:
            node = self._node.value
            await self._choose(node.labels.get(CONFIG_LABEL) if node else None, self._config_map.value)
        # A driver that is installed late may remove the obstacle, without any change of the node object.
        return LookResult(again=_LOOK_SECONDS if self.exposed.synced and self.exposed.value else None)

    async def _choose(self, label: str | None, config_map: Mapping[str, str] | None) -> None:
        try:
            config = self._start.choose(label, config_map)
        except PluginConfigInvalid as error:
            problem = f"{error.message}; {error.hint}".rstrip("; ")
            if not self.problem.synced or self.problem.value != problem:
                _log.error("configuration rejected", extra={"error": problem})
            self.problem.publish(problem)
            return
        config = await self._with_strategy(config)
        self.problem.publish("")
        self.latest.publish(config)
        self.strategy.publish(config.mig_strategy)
        self.sharing.publish(config.sharing)

    async def _with_strategy(self, config: PluginConfig) -> PluginConfig:
        """The configuration with `auto` resolved, once the node's versions are known. A node found to support CDI keeps it."""
        if not config.unchosen:
            self._found = None
            self.exposed.publish("")
            return config
        known = self._found[1] if self._found is not None and self._found[0] == config else None
        node = self._node.value if self._node.synced else None
        if node is not None:
            obstacle = why_not_by_cdi(config) or why_no_cdi(node.container_runtime, node.kubelet_version)
            if not obstacle and known != "":
                obstacle = await asyncio.to_thread(self._driver_obstacle, config)
            known = obstacle
        if known is None:
            return config
        if self._found != (config, known):
            _log.info("device-list strategy chosen", extra={"by_cdi": not known, "obstacle": known})
        self._found = config, known
        self.exposed.publish(exposed(known) if known else "")
        return with_strategy(config, known)
