"""The settings of NVIDIA's device plugin, each with its flag, environment variable and place in the v1 file; and unsupported
ones.

Data only. It includes settings that Tranche does not serve, so that they can be refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tranche.kubernetes.node.resources import MigStrategy


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
    """One setting. `field` is its name in PluginConfig; `place` its path in the file (empty: it has none).

    `aliases` are older names of the flag.
    """

    field: str
    flag: str
    environment: tuple[str, ...]
    place: tuple[str, ...]
    kind: ValueKind
    help: str
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


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


AUTO = "auto"
DEVICE_LISTS = (AUTO, "envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
DEVICE_IDS = ("uuid", "index")
SHARED_POLICIES = ("distributed", "spread", "packed")


def _flag(
    field: str, name: str, kind: ValueKind, help_: str, *place: str, choices: tuple[str, ...] = ()
) -> ConfigOption:
    return ConfigOption(field, f"--{name}", (name.upper().replace("-", "_"),), place, kind, help_, choices)


def _setting(
    field: str,
    flag: str,
    environment: tuple[str, ...],
    place: tuple[str, ...],
    kind: ValueKind,
    help_: str,
    *aliases: str,
) -> ConfigOption:
    return ConfigOption(field, flag, environment, place, kind, help_, aliases=aliases)


_PLUGIN = ("flags", "plugin")

SETTINGS = (
    _flag(
        "mig_strategy",
        "mig-strategy",
        ValueKind.CHOICE,
        "Strategy for advertising slices: none, single or mixed.",
        "flags",
        "migStrategy",
        choices=tuple(MigStrategy),
    ),
    _flag(
        "device_lists",
        "device-list-strategy",
        ValueKind.LIST,
        f"Way to pass devices to containers: {AUTO} (default), or one or more of {', '.join(DEVICE_LISTS[1:])}; repeatable.",
        *_PLUGIN,
        "deviceListStrategy",
        choices=DEVICE_LISTS,
    ),
    _flag(
        "device_id_strategy",
        "device-id-strategy",
        ValueKind.CHOICE,
        "Identification of devices in containers: uuid or index.",
        *_PLUGIN,
        "deviceIDStrategy",
        choices=DEVICE_IDS,
    ),
    _flag(
        "pass_device_specs",
        "pass-device-specs",
        ValueKind.BOOLEAN,
        "Let the kubelet add the device nodes to containers.",
        *_PLUGIN,
        "passDeviceSpecs",
    ),
    _flag(
        "gdrcopy_enabled",
        "gdrcopy-enabled",
        ValueKind.BOOLEAN,
        "Enable GDRCopy in containers.",
        "flags",
        "gdrcopyEnabled",
    ),
    _flag(
        "gds_enabled",
        "gds-enabled",
        ValueKind.BOOLEAN,
        "Enable GPUDirect Storage in containers.",
        "flags",
        "gdsEnabled",
    ),
    _flag(
        "mofed_enabled",
        "mofed-enabled",
        ValueKind.BOOLEAN,
        "Enable MOFED devices in containers.",
        "flags",
        "mofedEnabled",
    ),
    _setting(
        "driver_root",
        "--driver-root",
        ("NVIDIA_DRIVER_ROOT",),
        ("flags", "nvidiaDriverRoot"),
        ValueKind.TEXT,
        "Root folder of the driver on the host.",
        "--nvidia-driver-root",
    ),
    _setting(
        "dev_root",
        "--dev-root",
        ("NVIDIA_DEV_ROOT",),
        ("flags", "nvidiaDevRoot"),
        ValueKind.TEXT,
        "Root folder of /dev/nvidia* on the host. Default: the driver root.",
        "--nvidia-dev-root",
    ),
    _setting(
        "driver_root_in_container",
        "--driver-root-ctr-path",
        ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        (*_PLUGIN, "containerDriverRoot"),
        ValueKind.TEXT,
        "Path of the driver root in the agent's container.",
        "--container-driver-root",
    ),
    _flag(
        "cdi_annotation_prefix",
        "cdi-annotation-prefix",
        ValueKind.TEXT,
        "Prefix of the annotation key for cdi-annotations.",
        *_PLUGIN,
        "cdiAnnotationPrefix",
    ),
    _setting(
        "cdi_hook_path",
        "--nvidia-cdi-hook-path",
        ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        (*_PLUGIN, "nvidiaCTKPath"),
        ValueKind.TEXT,
        "Path of nvidia-ctk or nvidia-cdi-hook on the host.",
        "--nvidia-ctk-path",
    ),
    _flag(
        "kubelet_socket",
        "kubelet-socket",
        ValueKind.TEXT,
        "Registration socket of the kubelet. If empty, the agent does not register.",
    ),
    _flag(
        "shared_policy",
        "shared-devices-allocation-policy",
        ValueKind.CHOICE,
        "Placement of replicas of shared devices: on the least used device (distributed, spread) or the most used (packed).",
        *_PLUGIN,
        "sharedDevicesAllocationPolicy",
        choices=SHARED_POLICIES,
    ),
    ConfigOption(
        "virtual_gpus",
        "--vgpu",
        ("TRANCHE_VGPU",),
        (),
        ValueKind.NUMBER,
        "Also offer each GPU and slice as N virtual GPUs (k8s.amazonaws.com/vgpu) by MPS. --vgpu alone means 10.",
    ),
    ConfigOption(
        "virtual_threads",
        "--vgpu-thread-percentage",
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",),
        (),
        ValueKind.PERCENT,
        "Maximum percentage of a device's multiprocessors for each virtual GPU.",
    ),
    ConfigOption(
        "virtual_limited",
        "--vgpu-memory-limit",
        ("TRANCHE_VGPU_MEMORY_LIMIT",),
        (),
        ValueKind.BOOLEAN,
        "Limit the memory of each virtual GPU to its share. Default: true.",
    ),
    _setting(
        "disabled_health_checks",
        "--disable-healthchecks",
        ("DP_DISABLE_HEALTHCHECKS",),
        (),
        ValueKind.TEXT,
        "XIDs that do not make a device unhealthy, or all.",
    ),
    _setting(
        "enabled_health_checks",
        "--enable-healthchecks",
        ("DP_ENABLE_HEALTHCHECKS",),
        (),
        ValueKind.TEXT,
        "XIDs that make a device unhealthy, or all; overrides --disable-healthchecks.",
    ),
)
"""Every supported setting, under the names that NVIDIA's plugin takes; the health checks' flags are ours."""


def _refused(
    name: str, place: tuple[str, ...], harmless: tuple[str, ...], why: str, *variables: str
) -> UnsupportedOption:
    return UnsupportedOption(name, f"--{name}", (name.upper().replace("-", "_"), *variables), place, harmless, why)


def _file_only(place: tuple[str, ...], harmless: tuple[str, ...], why: str, *variables: str) -> UnsupportedOption:
    return UnsupportedOption(".".join(place), "", variables, place, harmless, why)


_MPS_ROOT = "the sockets of MPS daemons are in the state folder"
_LABELS = "the agent writes feature labels to the node on every change, and they have no settings"

UNSUPPORTED = (
    _refused("mps-root", ("flags", "mpsRoot"), ("",), _MPS_ROOT),
    _refused(
        "fail-on-init-error",
        ("flags", "failOnInitError"),
        ("", "true"),
        "the agent does not wait for a driver",
        "GFD_FAIL_ON_INIT_ERROR",
    ),
    _refused(
        "device-discovery-strategy",
        ("flags", "deviceDiscoveryStrategy"),
        ("", "auto", "nvml"),
        "the agent finds devices only through NVML",
    ),
    _refused("imex-channel-ids", ("imex", "channelIDs"), ("",), "Tranche does not support IMEX channels"),
    _refused("imex-required", ("imex", "required"), ("", "false"), "Tranche does not support IMEX channels"),
    _refused("cdi-feature-flags", (), ("",), "Tranche writes its own CDI specifications"),
    _refused("cdi-disable-hooks", (), ("",), "Tranche writes its own CDI specifications"),
    _refused(
        "use-node-feature-api", ("flags", "useNodeFeatureAPI"), ("", "false"), _LABELS, "GFD_USE_NODE_FEATURE_API"
    ),
    _file_only(("flags", "gfd", "oneshot"), ("", "false"), _LABELS, "GFD_ONESHOT"),
    _file_only(("flags", "gfd", "noTimestamp"), ("", "false"), _LABELS, "GFD_NO_TIMESTAMP"),
    _file_only(("flags", "gfd", "sleepInterval"), ("", "60s", "1m0s"), _LABELS, "GFD_SLEEP_INTERVAL"),
    _file_only(
        ("flags", "gfd", "outputFile"),
        ("", "/etc/kubernetes/node-feature-discovery/features.d/gfd"),
        _LABELS,
        "GFD_OUTPUT_FILE",
    ),
    _file_only(
        ("flags", "gfd", "machineTypeFile"), ("", "/sys/class/dmi/id/product_name"), _LABELS, "GFD_MACHINE_TYPE_FILE"
    ),
    UnsupportedOption(
        "GFD_MIG_STRATEGY", "", ("GFD_MIG_STRATEGY",), (), ("",), "labels follow the device plugin's strategy"
    ),
    UnsupportedOption(
        "GFD_CONFIG_FILE", "", ("GFD_CONFIG_FILE",), (), ("",), "labels follow the device plugin's settings"
    ),
    _file_only(("resources", "gpus"), ("",), "resource names follow the MIG strategy"),
    _file_only(("resources", "mig"), ("",), "resource names follow the MIG strategy"),
)
"""Every known but refused setting, with the values that change nothing."""
