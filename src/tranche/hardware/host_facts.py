"""What the kernel says about the machine around the GPUs: its product name, and the PCI class of each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SYS = Path("/sys")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", re.ASCII)
_NVIDIA, _DISPLAY = "0x10de", "0x03"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine's product name ("" if the kernel has none), and the PCI class of each bus id that the kernel knows."""

    product: str = ""
    pci_classes: Mapping[str, str] = field(default_factory=dict)


def sysfs_address(pci_bus_id: str) -> str:
    """The name of a PCI device in sysfs: NVML writes `00000000:10:1C.0`, sysfs `0000:10:1c.0`."""
    domain, _, rest = pci_bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def read_host_facts(pci_bus_ids: Iterable[str], *, sys: Path = _SYS) -> HostFacts:
    """The facts of this machine, as far as they can be read. Bus ids are as NVML writes them: `00000000:10:1C.0`."""
    classes = {}
    for bus_id in pci_bus_ids:
        if found := _text(sys / "bus" / "pci" / "devices" / sysfs_address(bus_id) / "class"):
            classes[bus_id] = found
    return HostFacts(_text(sys / "class" / "dmi" / "id" / "product_name"), classes)


def read_pcie_roots(pci_bus_ids: Mapping[str, str], *, sys: Path = _SYS) -> Mapping[str, str]:
    """The PCIe root of each device, as the kernel names it: `pci0000:10`; leaves out what cannot be read.

    Both mappings have the caller's names of devices as keys. Devices on the same root are near, such as a GPU and a network card.
    """
    found = {}
    for name, bus_id in pci_bus_ids.items():
        place = sys / "bus" / "pci" / "devices" / sysfs_address(bus_id)
        if root := next((part for part in place.resolve().parts if _ROOT.fullmatch(part)), ""):
            found[name] = root
    return found


def has_nvidia_gpu(*, sys: Path = _SYS) -> bool | None:
    """Whether the PCI bus has an NVIDIA GPU, with or without its driver; None if the kernel lists no PCI device at all."""
    try:
        devices = list((sys / "bus" / "pci" / "devices").iterdir())
    except OSError:
        return None
    if not devices:
        return None
    return any(
        _text(device / "vendor") == _NVIDIA and _text(device / "class").startswith(_DISPLAY) for device in devices
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
