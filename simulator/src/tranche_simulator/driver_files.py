"""The files that NVIDIA's driver and the kernel show besides NVML, for the GPUs of a simulated machine.

Texts as functions of the machine; `namespace` puts them in place. Files that come and go with instances are not here: the library
itself maintains the folder `capabilities`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from tranche_simulator.capabilities import mig_minors
from tranche_simulator.simulated_gpu import SimulatedGpu

MODULES = ("nvidia_uvm", "nvidia_modeset", "nvidia")
CHARACTER_DEVICES = {195: ("nvidia", "nvidia-modeset", "nvidiactl"), 237: ("nvidia-caps",), 511: ("nvidia-uvm",)}
_PARAMS = (
    "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
    "EnableMSI: 1\nEnableGpuFirmware: 18\n"
)
_BAR0, _BAR2 = 16 << 20, 32 << 20
_MEMORY_64_PREFETCHABLE, _MEMORY_32 = 0x14220C, 0x40200
_MULTI_FUNCTION_CAPABILITY = 0x10  # status bit: there is a list of capabilities
_EXPRESS_AT, _EXPRESS = 0x60, 0x10


def sysfs_address(bus_id: str) -> str:
    """A GPU's name in sysfs: NVML writes `00000000:10:1C.0`, sysfs `0000:10:1c.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def proc_driver(driver: str, gpus: Sequence[SimulatedGpu]) -> dict[str, str]:
    """For a driver of that version: path below /proc/driver -> text, without the capabilities that come and go."""
    files = {
        "nvidia/version": (
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue Sep 23 10:11:16 UTC 2025\n"
            "GCC version:  gcc version 12.2.0\n"
        ),
        "nvidia/params": _PARAMS,
        "nvidia-caps/mig-minors": mig_minors(),
        "nvidia-caps/sys-minors": "fabric-mgmt 0\n",
    }
    return files | {f"nvidia/gpus/{sysfs_address(gpu.bus_id)}/information": _information(gpu) for gpu in gpus}


def proc_modules(present: str) -> str:
    """/proc/modules: the driver's modules before the kernel's own, without a real driver's."""
    others = [line for line in present.splitlines() if not line.startswith("nvidia")]
    users = ",".join(name for name in MODULES if name != "nvidia")
    lines = [f"{name} 2125824 0 - Live 0x0000000000000000 (OE)" for name in MODULES if name != "nvidia"]
    lines.append(f"nvidia 14376960 {len(lines)} {users}, Live 0x0000000000000000 (OE)")
    return "\n".join([*lines, *others]) + "\n"


def proc_devices(present: str) -> str:
    """/proc/devices with the driver's character devices among the kernel's own."""
    head, _, tail = present.partition("\n\n")
    listed = [line for line in head.splitlines()[1:] if "nvidia" not in line]
    rows = [(int(line.split()[0]), line) for line in listed]
    rows += [(major, f"{major:3d} {name}") for major, names in CHARACTER_DEVICES.items() for name in names]
    lines = ["Character devices:", *(line for _, line in sorted(rows, key=lambda row: row[0]))]
    return "\n".join(lines) + "\n\n" + tail


def pci_device(gpu: SimulatedGpu) -> dict[str, bytes]:
    """File name -> content of a GPU's folder under /sys/bus/pci/devices."""
    device, vendor = gpu.pci_device_id >> 16, gpu.pci_device_id & 0xFFFF
    subsystem, subsystem_vendor = gpu.pci_subsystem_id >> 16, gpu.pci_subsystem_id & 0xFFFF
    texts = {
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{device:04x}",
        "subsystem_vendor": f"0x{subsystem_vendor:04x}",
        "subsystem_device": f"0x{subsystem:04x}",
        "class": f"0x{gpu.pci_class:06x}",
        "revision": "0xa1",
        "numa_node": str(gpu.numa_node),
        "enable": "1",
        "irq": str(120 + gpu.index),
        "resource": _resource(gpu.memory),
        "uevent": _uevent(gpu),
    }
    return {name: f"{text}\n".encode() for name, text in texts.items()} | {"config": _config_space(gpu)}


def _information(gpu: SimulatedGpu) -> str:
    fields = {
        "Model: \t\t": gpu.name,
        "IRQ:   \t\t": str(120 + gpu.index),
        "GPU UUID: \t": gpu.uuid,
        "Bus Type: \t": "PCIe",
        "DMA Size: \t": "47 bits",
        "DMA Mask: \t": "0x7fffffffffff",
        "Bus Location: \t": sysfs_address(gpu.bus_id),
        "Device Minor: \t": str(gpu.index),
        "GPU Excluded:\t": "No",
    }
    return "".join(f"{name} {value}\n" for name, value in fields.items())


def _resource(memory: int) -> str:
    """BAR 0 (registers), 1 (the memory, up to a power of two) and 3, as the kernel lists a device's thirteen regions."""
    bar1 = 1 << (memory - 1).bit_length()
    regions = [(0, 0, 0)] * 13
    regions[0] = (0xD0000000, 0xD0000000 + _BAR0 - 1, _MEMORY_32)
    regions[1] = (1 << 40, (1 << 40) + bar1 - 1, _MEMORY_64_PREFETCHABLE)
    regions[3] = ((1 << 40) + bar1, (1 << 40) + bar1 + _BAR2 - 1, _MEMORY_64_PREFETCHABLE)
    return "\n".join(" ".join(f"0x{value:016x}" for value in region) for region in regions)


def _uevent(gpu: SimulatedGpu) -> str:
    device, subsystem = (
        re.sub(r"(....)(....)", r"\2:\1", f"{i:08X}") for i in (gpu.pci_device_id, gpu.pci_subsystem_id)
    )
    slot = sysfs_address(gpu.bus_id)
    return (
        f"DRIVER=nvidia\nPCI_CLASS={gpu.pci_class:X}\nPCI_ID={device}\nPCI_SUBSYS_ID={subsystem}\nPCI_SLOT_NAME={slot}"
    )


def _config_space(gpu: SimulatedGpu) -> bytes:
    """The 256 bytes of standard configuration: identity, and one capability (PCI Express), so that the list can be walked."""
    space = bytearray(256)
    struct.pack_into(
        "<HHHH", space, 0, gpu.pci_device_id & 0xFFFF, gpu.pci_device_id >> 16, 0x0406, _MULTI_FUNCTION_CAPABILITY
    )
    struct.pack_into("<I", space, 8, gpu.pci_class << 8 | 0xA1)
    struct.pack_into("<HH", space, 0x2C, gpu.pci_subsystem_id & 0xFFFF, gpu.pci_subsystem_id >> 16)
    space[0x34] = _EXPRESS_AT
    struct.pack_into("<BBH", space, _EXPRESS_AT, _EXPRESS, 0, 0x0002)
    return bytes(space)
