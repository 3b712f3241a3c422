"""Layouts for the machine's own GPUs, under the names that mig-parted generates and ships.

`all-disabled` and `all-enabled` switch MIG mode. `all-<profile>` cuts every GPU into as many slices of the profile as fit (`+` is
written `.` in the name). `all-balanced` gives 7-slice GPUs two 1g, one 2g and one 3g, and 4-slice GPUs two 1g and one 2g, each
the smallest of its size without attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tranche.core.board import GpuInstanceProfile
from tranche.core.device_filter import parse_device_filter
from tranche.core.errors import MigNotSupported, ProfileUnknown
from tranche.core.grid import remaining_capacity
from tranche.core.layout import Layout, LayoutFile, LayoutSpec
from tranche.core.profile import ProfileName
from tranche.core.state import NodeState
from tranche.planning.layouts.reconfigure import lost_error

Slices = tuple[tuple[ProfileName, int], ...]

_BALANCED: Mapping[int, Mapping[int, int]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


def generate_layouts(node: NodeState) -> LayoutFile:
    """The layouts that this machine can have.

    Raises MigNotSupported when no GPU can be cut, HardwareError when the driver has lost all that could be, ProfileUnknown when
    their profiles are unknown.
    """
    capable = [gpu for gpu in node if gpu.mig_capable]
    if not capable and (lost := [gpu.full_name for gpu in node if gpu.lost]):
        raise lost_error("layouts of this machine", lost, "")
    if not capable:
        raise MigNotSupported("no MIG-capable devices found on the system", hint="see: tranche gpus")
    profiles = {gpu.pci_device_id: gpu.profiles for gpu in capable if gpu.profiles}
    if not profiles:
        raise ProfileUnknown(
            "no MIG profiles discovered for MIG-capable GPUs",
            hint="the driver names profiles only while MIG mode is on; enable it, then try again",
        )
    layouts = [
        Layout("all-disabled", (LayoutSpec(mig_enabled=False),)),
        Layout("all-enabled", (LayoutSpec(mig_enabled=True),)),
    ]
    if balanced := {product: slices for product, found in profiles.items() if (slices := _balanced(found))}:
        layouts.append(Layout("all-balanced", _specs(balanced, several=len(profiles) > 1)))
    for name in sorted({profile.name for found in profiles.values() for profile in found}):
        counts = {
            product: ((name, most_instances(profile)),)
            for product, found in profiles.items()
            for profile in found
            if profile.name == name
        }
        layouts.append(Layout("all-" + str(name).replace("+", "."), _specs(counts, several=len(profiles) > 1)))
    return LayoutFile(tuple(sorted(layouts, key=lambda layout: layout.name)), "the generated layouts of this machine")


def most_instances(profile: GpuInstanceProfile) -> int:
    """How many instances of the profile fit on an empty GPU.

    Uses placements, because NVML's own count is too high on some A30 drivers; uses the count if no placements are known.
    """
    return remaining_capacity(profile, ()) if profile.starts else profile.max_instances


def _balanced(profiles: Iterable[GpuInstanceProfile]) -> Slices:
    """The balanced slices of one product; empty if a size is missing or the product has another number of slices."""
    plain = [profile for profile in profiles if not profile.name.has_attributes]
    counts = _BALANCED.get(max((profile.slices for profile in plain), default=0), {})
    slices: list[tuple[ProfileName, int]] = []
    for size, count in counts.items():
        candidates = [profile for profile in plain if profile.slices == size]
        if not candidates:
            return ()
        chosen = max(candidates, key=lambda profile: (most_instances(profile), -profile.name.memory_gb))
        slices.append((chosen.name, count))
    return tuple(sorted(slices))


def _specs(by_product: Mapping[str, Slices], *, several: bool) -> tuple[LayoutSpec, ...]:
    """One spec for each different cut; filters only if the machine has several products."""
    products: dict[Slices, list[str]] = {}
    for product, slices in sorted(by_product.items()):
        products.setdefault(slices, []).append(product)
    return tuple(
        LayoutSpec(True, slices, None, tuple(map(parse_device_filter, named)) if several else ())
        for slices, named in sorted(products.items(), key=lambda pair: pair[1])
    )
