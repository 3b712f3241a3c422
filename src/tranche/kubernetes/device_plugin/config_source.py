"""Where the configuration comes from, and that it follows its source: a ConfigMap's key by the node's label, or start alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tranche.core.errors import PluginConfigInvalid
from tranche.kubernetes.api.objects import ConfigMap, KubeApi, KubeNode
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.device_plugin.config import PluginConfig, read_config
from tranche.kubernetes.device_plugin.selection import CONFIG_LABEL, DEFAULT_FALLBACKS, Fallback, selected_key
from tranche.kubernetes.live import Live
from tranche.kubernetes.observation.health import xid_policy
from tranche.kubernetes.observation.replicas import ReplicaRules
from tranche.kubernetes.observation.resources import MigStrategy
from tranche.node.yaml_reader import NotYaml, load_yaml

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartSettings:
    """What the process was started with.

    `file` is the text of --config-file; `config_map` the name of a ConfigMap ("" for none), whose key is chosen by the node's
    label, `default_key` and `fallbacks`.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    file: str = ""
    config_map: str = ""
    default_key: str = ""
    fallbacks: tuple[Fallback, ...] = DEFAULT_FALLBACKS

    def read(self, text: str) -> PluginConfig:
        """The configuration with that text as its file; PluginConfigInvalid otherwise."""
        try:
            document = load_yaml(text)
        except NotYaml as error:
            raise PluginConfigInvalid(f"the configuration is not YAML: {error}") from error
        config = read_config(document, environment=self.environment, flags=self.flags)
        xid_policy(config.disabled_health_checks, config.enabled_health_checks)
        return config

    def check(self) -> None:
        """PluginConfigInvalid when no node could use this, whatever its label and the ConfigMap."""
        self.read(self.file)

    def choose(self, label: str | None, config_map: ConfigMap | None) -> PluginConfig:
        """The configuration of a node with that label; PluginConfigInvalid otherwise."""
        if not self.config_map:
            return self.read(self.file)
        if config_map is None:
            raise PluginConfigInvalid(
                f"there is no ConfigMap {self.config_map}", hint="create it, or start the agent without it"
            )
        key = selected_key(label, config_map.data, default=self.default_key, fallbacks=self.fallbacks)
        return self.read("" if key is None else config_map.data[key])


class ConfigSource:
    """A component: the configuration in effect, changed when the label or the ConfigMap changes.

    A configuration that is wrong changes nothing: the one before stays in effect, and `problem` says what is wrong. `strategy`
    and `sharing` are what of it concerns more than the device plugin.
    """

    name = "device-plugin-config"

    def __init__(self, start: StartSettings, api: KubeApi, namespace: str, node: Live[KubeNode | None]) -> None:
        self.latest: Live[PluginConfig] = Live()
        self.strategy: Live[MigStrategy] = Live()
        self.sharing: Live[ReplicaRules] = Live()
        self.problem: Live[str] = Live()
        self._start = start
        self._api = api
        self._namespace = namespace
        self._node = node
        self._config_map: Live[ConfigMap | None] = Live()

    def ready(self) -> Readiness:
        """Ready when a configuration is in effect."""
        if self.latest.synced:
            return Readiness(True)
        return Readiness(False, self.problem.value if self.problem.synced else "the configuration was not read yet")

    async def run(self) -> None:
        """Follow label and ConfigMap until cancelled."""
        if not self._start.config_map:
            self._choose(None, None)
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_config_map())
            group.create_task(self._follow(self._node))
            group.create_task(self._follow(self._config_map))

    async def _follow_config_map(self) -> None:
        async for config_map in self._api.watch_config_map(self._namespace, self._start.config_map):
            self._config_map.publish(config_map)

    async def _follow(self, source: Live[KubeNode | None] | Live[ConfigMap | None]) -> None:
        async for _ in source.changes():
            if self._node.synced and self._config_map.synced:
                node = self._node.value
                self._choose(node.labels.get(CONFIG_LABEL) if node else None, self._config_map.value)

    def _choose(self, label: str | None, config_map: ConfigMap | None) -> None:
        try:
            config = self._start.choose(label, config_map)
        except PluginConfigInvalid as error:
            problem = f"{error.message}; {error.hint}".rstrip("; ")
            _log.error("configuration refused", extra={"error": problem})
            self.problem.publish(problem)
            return
        self.problem.publish("")
        self.latest.publish(config)
        self.strategy.publish(config.mig_strategy)
        self.sharing.publish(config.sharing)
