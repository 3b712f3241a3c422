"""The device plugin's configuration: the v1 file, environment and flags that NVIDIA's plugin takes.

A flag wins over its environment variable, and the variable over the file. Unsupported settings and unknown names are refused;
NVIDIA's plugin ignores both.

The device-list strategy `auto` is CDI where the node's kubelet and runtime are known to support it, else the variable. A
container's own NVIDIA_VISIBLE_DEVICES wins over the device plugin's, and an NVIDIA container runtime obeys it. A CDI
specification is applied after a container's own variables, so a pod cannot bypass it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tranche.core.errors import PluginConfigInvalid
from tranche.kubernetes.device_plugin import sharing_config
from tranche.kubernetes.device_plugin.settings import (
    SETTINGS,
    UNSUPPORTED,
    ConfigOption,
    DeviceIdStrategy,
    DeviceListStrategy,
    SharedPolicy,
    UnsupportedOption,
    ValueKind,
)
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy
from tranche.kubernetes.node.resources import MigStrategy

_VERSION = "v1"
_VIRTUAL = ("virtual", "virtual_threads", "virtual_limited")
"""The settings that are those of `ReplicaPolicy`."""
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


_CDI = frozenset({DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI})


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """How the device plugin works. Paths are the host's, except `driver_root_in_container` and `kubelet_socket`."""

    mig_strategy: MigStrategy = MigStrategy.NONE
    device_lists: tuple[DeviceListStrategy, ...] = (DeviceListStrategy.AUTO,)
    device_id_strategy: DeviceIdStrategy = DeviceIdStrategy.UUID
    pass_device_specs: bool = False
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    driver_root: str = "/"
    dev_root: str = ""
    driver_root_in_container: str = "/driver-root"
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    cdi_hook_path: str = "/usr/bin/nvidia-ctk"
    kubelet_socket: str = "/var/lib/kubelet/device-plugins/kubelet.sock"
    shared_policy: SharedPolicy = SharedPolicy.DISTRIBUTED
    disabled_health_checks: str = ""
    enabled_health_checks: str = ""
    sharing: ReplicaPolicy = NOT_SHARED

    @property
    def unchosen(self) -> bool:
        """Whether the node's capabilities still have to decide the strategy."""
        return DeviceListStrategy.AUTO in self.device_lists

    @property
    def cdi_enabled(self) -> bool:
        """Whether any strategy uses CDI."""
        return any(strategy in _CDI for strategy in self.device_lists)

    @property
    def cdi_only(self) -> bool:
        """Whether every strategy uses CDI: then a container gets nothing else."""
        return all(strategy in _CDI for strategy in self.device_lists)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of enabled settings that only the NVIDIA container runtime can serve."""
        wanted = {
            "gdrcopy-enabled": self.gdrcopy_enabled,
            "gds-enabled": self.gds_enabled,
            "mofed-enabled": self.mofed_enabled,
        }
        return tuple(name for name, enabled in wanted.items() if enabled)

    @property
    def plugin_folder(self) -> Path:
        """Where the kubelet looks for plugins' sockets."""
        return Path(self.kubelet_socket or PluginConfig().kubelet_socket).parent


def read_config(
    file: object = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str | Sequence[str]] | None = None,
) -> PluginConfig:
    """The configuration from a decoded v1 document (None: no file), the environment, and flags by name (`--mig-strategy`).

    Raises:
        PluginConfigInvalid: the document breaks the format, a value is none of a setting's, or something is not supported.
    """
    environment, flags = environment or {}, flags or {}
    document = _document(file)
    for refused in UNSUPPORTED:
        _refuse(refused, document, environment, flags)
    _refuse_unknown(document)
    sharing = sharing_config.read_sharing(_at(document, (sharing_config.PLACE,)))
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        found = _lookup(setting, document, environment, flags)
        if found is not None:
            value, where = found
            values[setting.field] = _parse(setting, value, where)
    virtual = {name: values.pop(name) for name in _VIRTUAL if name in values}
    return _checked(replace(PluginConfig(), **values, sharing=replace(sharing, **virtual)))


def _checked(config: PluginConfig) -> PluginConfig:
    if not config.device_lists:
        raise _invalid("device-list-strategy: at least one strategy is needed")
    if config.unchosen and len(config.device_lists) > 1:
        raise _invalid("device-list-strategy auto cannot be combined with another strategy")
    if config.cdi_only and config.features:
        raise _invalid(f"{config.features[0]} is not supported when all device-list strategies are CDI")
    if config.device_id_strategy is DeviceIdStrategy.INDEX and config.cdi_enabled:
        raise _invalid("device-id-strategy index is not supported with CDI: CDI devices are named by UUID")
    sharing = config.sharing
    if sharing.virtual and sharing.resources:
        raise _invalid("vgpu and sharing both define how devices are shared: set only one of them")
    if not sharing.virtual and (sharing.virtual_threads is not None or not sharing.virtual_limited):
        raise _invalid(
            "vgpu-thread-percentage and vgpu-memory-limit need virtual GPUs, but none are configured",
            hint="set their number: --vgpu=10",
        )
    return config


def _document(file: object) -> Mapping[str, Any]:
    if file is None:
        return {}
    if not isinstance(file, Mapping):
        raise _invalid("the configuration must be a mapping")
    version = file.get("version", _VERSION)
    if version != _VERSION:
        raise _invalid(f"unknown version: {version}")
    return file


def _refuse(
    setting: UnsupportedOption,
    document: Mapping[str, Any],
    environment: Mapping[str, str],
    flags: Mapping[str, str | Sequence[str]],
) -> None:
    given: list[tuple[str, object]] = [(setting.flag, flags.get(setting.flag))]
    given += [(name, environment.get(name) or None) for name in setting.environment]
    given.append((".".join(setting.place), _at(document, setting.place)))
    where, value = next(((where, value) for where, value in given if value is not None), ("", None))
    if value is not None and _as_written(_text(value)) not in setting.harmless:
        raise _invalid(f"{where} is not supported: {setting.why}", hint=f"remove {where} from the configuration")


def _refuse_unknown(document: Mapping[str, Any]) -> None:
    """Refuse unknown names: each is a mistake or from a newer version of NVIDIA's plugin, and neither must go unnoticed."""
    known = [setting.place for setting in (*SETTINGS, *UNSUPPORTED)] + [("version",), (sharing_config.PLACE,)]

    def check(part: Mapping[str, Any], path: tuple[str, ...]) -> None:
        for key, value in part.items():
            here = (*path, str(key))
            if here in known:
                continue
            if not any(place[: len(here)] == here for place in known):
                raise _invalid(f"unknown field: {'.'.join(here)}")
            if value is not None and not isinstance(value, Mapping):
                raise _invalid(f"{'.'.join(here)} must be a mapping")
            check(value or {}, here)

    check(document, ())


def _lookup(
    setting: ConfigOption,
    document: Mapping[str, Any],
    environment: Mapping[str, str],
    flags: Mapping[str, str | Sequence[str]],
) -> tuple[object, str] | None:
    """The value that wins, and where it was found. An empty variable counts as unset, except the kubelet's socket."""
    if setting.flag in flags:
        return flags[setting.flag], setting.flag
    for name in setting.environment:
        if environment.get(name, "") or (name in environment and setting.field == "kubelet_socket"):
            return environment[name], name
    value = _at(document, setting.place) if setting.place else None
    return None if value is None else (value, ".".join(setting.place))


def _parse(setting: ConfigOption, value: object, where: str) -> object:
    if setting.kind is ValueKind.LIST:
        listed = value if isinstance(value, Sequence) and not isinstance(value, str) else str(value).split(",")
        parts = [part for item in listed for part in _text(item).split(",")]
        texts = dict.fromkeys(text for part in parts if (text := part.strip()))
        return tuple(_one_of(text, setting, where) for text in texts)
    if setting.kind is ValueKind.BOOLEAN:
        text = _text(value)
        if text not in _TRUE + _FALSE:
            raise _invalid(f"{where} must be true or false, not '{text}'")
        return text in _TRUE
    if setting.kind is ValueKind.NUMBER:
        text = _text(value)
        if not text.isdecimal() or not (int(text) == 0 or 2 <= int(text) <= sharing_config.MOST_CLIENTS):
            most = sharing_config.MOST_CLIENTS
            raise _invalid(f"{where} must be between 2 and {most} (the MPS client limit), not '{text}'")
        return int(text)
    if setting.kind is ValueKind.PERCENT:
        text = _text(value)
        if not text.isdecimal() or not 1 <= int(text) <= 100:
            raise _invalid(f"{where} must be a percentage between 1 and 100, not '{text}'")
        return int(text)
    if not isinstance(value, str):
        raise _invalid(f"{where} must be a string")
    return _one_of(value, setting, where) if setting.kind is ValueKind.CHOICE else value


def _one_of(text: str, setting: ConfigOption, where: str) -> StrEnum:
    if setting.values is None or text not in setting.choices:
        raise _invalid(f"{where}: '{text}' is not one of {', '.join(setting.choices)}")
    return setting.values(text)


def _at(document: Mapping[str, Any], place: Sequence[str]) -> object:
    part: object = document
    for key in place:
        if not isinstance(part, Mapping):
            return None
        part = part.get(key)
    return part if place else None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or (isinstance(value, Mapping | Sequence) and not value):
        return ""
    return str(value)


def _as_written(text: str) -> str:
    """The usual spelling of a boolean; other text unchanged."""
    return {**dict.fromkeys(_TRUE, "true"), **dict.fromkeys(_FALSE, "false")}.get(text, text)


def _invalid(message: str, *, hint: str = "") -> PluginConfigInvalid:
    return PluginConfigInvalid(message, hint=hint)


_KUBELET = (1, 31)
"""From this version on, a kubelet passes CDI names on with any feature gates."""

_RUNTIMES = {"containerd": (2, 0), "cri-o": (1, 28)}
"""From this version on, CDI is on by default; CRI-O accepted names of CDI devices later than CDI itself."""


def why_no_cdi(runtime: str, kubelet: str) -> str:
    """Why a node's versions, as its status has them, do not show that it supports CDI; "" when they do."""
    name, _, version = runtime.partition("://")
    oldest = _RUNTIMES.get(name)
    if oldest is None:
        return f"its container runtime is {runtime or 'unknown'}"
    if not _at_least(version, oldest):
        return f"its container runtime is {name} {version or '(unknown version)'}, which might not have CDI enabled"
    if not _at_least(kubelet, _KUBELET):
        return f"its kubelet version is {kubelet or 'unknown'}, and kubelets before 1.31 might not pass on CDI names"
    return ""


def with_strategy(config: PluginConfig, obstacle: str) -> PluginConfig:
    """The configuration with the strategy that `auto` stands for; `obstacle` says why CDI is not known to work on the node."""
    chosen = DeviceListStrategy.ENVVAR if obstacle else DeviceListStrategy.CDI_CRI
    return replace(config, device_lists=(chosen,))


def why_not_by_cdi(config: PluginConfig) -> str:
    """What the configuration asks for that CDI cannot do; "" when nothing."""
    if config.features:
        return f"CDI does not support {config.features[0]}"
    if config.device_id_strategy is DeviceIdStrategy.INDEX:
        return "CDI names devices by UUID, but device-id-strategy is index"
    return ""


def exposed(obstacle: str) -> str:
    """The message for people where `auto` found no way but the variable."""
    return (
        "a container that sets NVIDIA_VISIBLE_DEVICES itself can see every GPU of this node: the agent passes "
        f"devices through that variable, because {obstacle}"
    )


def _at_least(version: str, oldest: tuple[int, int]) -> bool:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= oldest
