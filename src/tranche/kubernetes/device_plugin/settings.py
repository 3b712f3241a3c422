"""The settings of NVIDIA's device plugin, each with its flag, environment variable and place in the v1 file; unsupported ones;
and which file of a ConfigMap a node uses. Pure.

It includes settings that Tranche does not serve, so that they can be refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from tranche.core.errors import PluginConfigInvalid
from tranche.kubernetes.node.resources import MigStrategy


class DeviceListStrategy(StrEnum):
    """How a container learns its devices. AUTO stands for what the node allows (`with_strategy`)."""

    AUTO = "auto"
    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class DeviceIdStrategy(StrEnum):
    """How a container's environment names a device."""

    UUID = "uuid"
    INDEX = "index"


class SharedPolicy(StrEnum):
    """Which of the shared devices replicas are taken of: the least used, NVIDIA's name or ours, or the most used."""

    DISTRIBUTED = "distributed"
    SPREAD = "spread"
    PACKED = "packed"


class ValueKind(Enum):
    """How a setting's text is read. LIST takes commas, or a list in the file."""

    TEXT = "text"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    LIST = "list"
    NUMBER = "number"
    PERCENT = "percent"


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """One setting. `field` is its name in PluginConfig or its ReplicaPolicy; `place` its path in the file (empty: it has none).

    `values` are those of a choice or a list; `aliases` are older names of the flag.
    """

    field: str
    flag: str
    environment: tuple[str, ...]
    place: tuple[str, ...]
    kind: ValueKind
    help: str
    values: type[StrEnum] | None = None
    aliases: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; none where it takes any."""
        return () if self.values is None else tuple(self.values)


@dataclass(frozen=True, slots=True)
class UnsupportedOption:
    """A setting of NVIDIA's plugin that is refused unless it has one of the `harmless` values, as text; "" is an empty one."""

    name: str
    flag: str
    environment: tuple[str, ...]
    place: tuple[str, ...]
    harmless: tuple[str, ...]
    why: str

    @property
    def boolean(self) -> bool:
        """Whether it is a boolean, so that the flag alone means true."""
        return "true" in self.harmless or "false" in self.harmless


def _option(
    name: str,
    kind: ValueKind,
    help_: str,
    place: str = "",
    *variables: str,
    field: str = "",
    values: type[StrEnum] | None = None,
    alias: str = "",
) -> ConfigOption:
    """The setting with the flag of that name, after which its field and its variable are named unless they are given."""
    word = name.replace("-", "_")
    aliases = (f"--{alias}",) if alias else ()
    return ConfigOption(
        field or word, f"--{name}", variables or (word.upper(),), _path(place), kind, help_, values, aliases
    )


def _path(place: str) -> tuple[str, ...]:
    return tuple(place.split(".")) if place else ()


_NAMES = ", ".join(each for each in DeviceListStrategy if each is not DeviceListStrategy.AUTO)

SETTINGS = (
    _option(
        "mig-strategy",
        ValueKind.CHOICE,
        "Strategy for advertising slices: none, single or mixed.",
        "flags.migStrategy",
        values=MigStrategy,
    ),
    _option(
        "device-list-strategy",
        ValueKind.LIST,
        f"Way to pass devices to containers: auto (default), or one or more of {_NAMES}; repeatable.",
        "flags.plugin.deviceListStrategy",
        field="device_lists",
        values=DeviceListStrategy,
    ),
    _option(
        "device-id-strategy",
        ValueKind.CHOICE,
        "Identifiers of devices in containers: uuid or index.",
        "flags.plugin.deviceIDStrategy",
        values=DeviceIdStrategy,
    ),
    _option(
        "pass-device-specs",
        ValueKind.BOOLEAN,
        "Let the kubelet add the device nodes to containers.",
        "flags.plugin.passDeviceSpecs",
    ),
    _option("gdrcopy-enabled", ValueKind.BOOLEAN, "Enable GDRCopy in containers.", "flags.gdrcopyEnabled"),
    _option("gds-enabled", ValueKind.BOOLEAN, "Enable GPUDirect Storage in containers.", "flags.gdsEnabled"),
    _option("mofed-enabled", ValueKind.BOOLEAN, "Enable MOFED devices in containers.", "flags.mofedEnabled"),
    _option(
        "driver-root",
        ValueKind.TEXT,
        "Driver root folder on the host.",
        "flags.nvidiaDriverRoot",
        "NVIDIA_DRIVER_ROOT",
        alias="nvidia-driver-root",
    ),
    _option(
        "dev-root",
        ValueKind.TEXT,
        "Root folder of /dev/nvidia* on the host. Default: the driver root.",
        "flags.nvidiaDevRoot",
        "NVIDIA_DEV_ROOT",
        alias="nvidia-dev-root",
    ),
    _option(
        "driver-root-ctr-path",
        ValueKind.TEXT,
        "Path of the driver root in the agent's container.",
        "flags.plugin.containerDriverRoot",
        "DRIVER_ROOT_CTR_PATH",
        "CONTAINER_DRIVER_ROOT",
        field="driver_root_in_container",
        alias="container-driver-root",
    ),
    _option(
        "cdi-annotation-prefix",
        ValueKind.TEXT,
        "Prefix of the annotation key for cdi-annotations.",
        "flags.plugin.cdiAnnotationPrefix",
    ),
    _option(
        "nvidia-cdi-hook-path",
        ValueKind.TEXT,
        "Path to nvidia-ctk or nvidia-cdi-hook on the host.",
        "flags.plugin.nvidiaCTKPath",
        "NVIDIA_CDI_HOOK_PATH",
        "NVIDIA_CTK_PATH",
        field="cdi_hook_path",
        alias="nvidia-ctk-path",
    ),
    _option(
        "kubelet-socket", ValueKind.TEXT, "Registration socket of the kubelet. If empty, the agent does not register."
    ),
    _option(
        "shared-devices-allocation-policy",
        ValueKind.CHOICE,
        "Placement of replicas: on the least used device (distributed, spread) or the most used one (packed).",
        "flags.plugin.sharedDevicesAllocationPolicy",
        field="shared_policy",
        values=SharedPolicy,
    ),
    _option(
        "vgpu",
        ValueKind.NUMBER,
        "Also offer each GPU and slice as N virtual GPUs (k8s.amazonaws.com/vgpu), shared through MPS. --vgpu without N means "
        "10.",
        "",
        "TRANCHE_VGPU",
        field="virtual",
    ),
    _option(
        "vgpu-thread-percentage",
        ValueKind.PERCENT,
        "Maximum percentage of a device's multiprocessors for each virtual GPU.",
        "",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        field="virtual_threads",
    ),
    _option(
        "vgpu-memory-limit",
        ValueKind.BOOLEAN,
        "Limit the memory of each virtual GPU to its share. Default: true.",
        "",
        "TRANCHE_VGPU_MEMORY_LIMIT",
        field="virtual_limited",
    ),
    _option(
        "disable-healthchecks",
        ValueKind.TEXT,
        "XIDs that do not make a device unhealthy; all means every XID.",
        "",
        "DP_DISABLE_HEALTHCHECKS",
        field="disabled_health_checks",
    ),
    _option(
        "enable-healthchecks",
        ValueKind.TEXT,
        "XIDs that make a device unhealthy; all means every XID. Overrides --disable-healthchecks.",
        "",
        "DP_ENABLE_HEALTHCHECKS",
        field="enabled_health_checks",
    ),
)
"""Every supported setting, under the names that NVIDIA's plugin takes; the health checks' flags are ours."""


def _refused(name: str, place: str, harmless: tuple[str, ...], why: str, *variables: str) -> UnsupportedOption:
    variables = (name.upper().replace("-", "_"), *variables)
    return UnsupportedOption(name, f"--{name}", variables, _path(place), harmless, why)


def _without_flag(place: str, harmless: tuple[str, ...], why: str, *variables: str) -> UnsupportedOption:
    return UnsupportedOption(place or variables[0], "", variables, _path(place), harmless, why)


_MPS_ROOT = "the sockets of MPS daemons are in the state folder"
_LABELS = "the agent writes feature labels to the node on every change, and they have no settings"

UNSUPPORTED = (
    _refused("mps-root", "flags.mpsRoot", ("",), _MPS_ROOT),
    _refused(
        "fail-on-init-error",
        "flags.failOnInitError",
        ("", "true"),
        "the agent does not wait for a driver",
        "GFD_FAIL_ON_INIT_ERROR",
    ),
    _refused(
        "device-discovery-strategy",
        "flags.deviceDiscoveryStrategy",
        ("", "auto", "nvml"),
        "the agent finds devices only through NVML",
    ),
    _refused("imex-channel-ids", "imex.channelIDs", ("",), "Tranche does not support IMEX channels"),
    _refused("imex-required", "imex.required", ("", "false"), "Tranche does not support IMEX channels"),
    _refused("cdi-feature-flags", "", ("",), "Tranche writes its own CDI specifications"),
    _refused("cdi-disable-hooks", "", ("",), "Tranche writes its own CDI specifications"),
    _refused("use-node-feature-api", "flags.useNodeFeatureAPI", ("", "false"), _LABELS, "GFD_USE_NODE_FEATURE_API"),
    _without_flag("flags.gfd.oneshot", ("", "false"), _LABELS, "GFD_ONESHOT"),
    _without_flag("flags.gfd.noTimestamp", ("", "false"), _LABELS, "GFD_NO_TIMESTAMP"),
    _without_flag("flags.gfd.sleepInterval", ("", "60s", "1m0s"), _LABELS, "GFD_SLEEP_INTERVAL"),
    _without_flag(
        "flags.gfd.outputFile",
        ("", "/etc/kubernetes/node-feature-discovery/features.d/gfd"),
        _LABELS,
        "GFD_OUTPUT_FILE",
    ),
    _without_flag(
        "flags.gfd.machineTypeFile", ("", "/sys/class/dmi/id/product_name"), _LABELS, "GFD_MACHINE_TYPE_FILE"
    ),
    _without_flag("", ("",), "labels follow the device plugin's strategy", "GFD_MIG_STRATEGY"),
    _without_flag("", ("",), "labels follow the device plugin's settings", "GFD_CONFIG_FILE"),
    _without_flag("resources.gpus", ("",), "resource names follow the MIG strategy"),
    _without_flag("resources.mig", ("",), "resource names follow the MIG strategy"),
)
"""Every known but refused setting, with the values that change nothing."""


CONFIG_LABEL = "nvidia.com/device-plugin.config"


class FallbackStrategy(StrEnum):
    """What a node without the label uses: the key `default`, the only key, or no file at all."""

    NAMED = "named"
    SINGLE = "single"
    EMPTY = "empty"


DEFAULT_FALLBACKS = (FallbackStrategy.NAMED, FallbackStrategy.SINGLE)


def selected_key(
    label: str | None,
    keys: Collection[str],
    *,
    default: str = "",
    fallbacks: Sequence[FallbackStrategy] = DEFAULT_FALLBACKS,
) -> str | None:
    """The key to use, None for an empty configuration: the label's, else `default`, else the first fallback that applies.

    Raises:
        PluginConfigInvalid: the label or the default names no key, or no fallback applies.
    """
    for name, source in ((label, f"the label {CONFIG_LABEL}"), (default, "the default configuration")):
        if name:
            if name in keys:
                return name
            raise PluginConfigInvalid(
                f"{source} selects the configuration '{name}', which the ConfigMap does not contain",
                hint=f"it contains: {', '.join(sorted(keys)) or 'nothing'}",
            )
    for fallback in fallbacks:
        if fallback is FallbackStrategy.NAMED and "default" in keys:
            return "default"
        if fallback is FallbackStrategy.SINGLE and len(keys) == 1:
            return next(iter(keys))
        if fallback is FallbackStrategy.EMPTY:
            return None
    raise PluginConfigInvalid(
        f"the node has no label {CONFIG_LABEL}, and the ConfigMap has no fallback configuration",
        hint=f"label the node with one of: {', '.join(sorted(keys)) or '(the ConfigMap is empty)'}",
    )
