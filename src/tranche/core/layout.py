"""Declared layouts: how to cut the GPUs of a machine. The data of the v1 configuration file, without its spelling.

A layout file holds named layouts, and a layout is a list of specs. A spec sets the MIG mode of the GPUs it matches, and how many
slices of which profile they have. A layout ignores GPUs that no spec matches. Filters on PCI device and subsystem ids select the
GPU products of a spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat

from tranche.core.board import board_by_pci_id
from tranche.core.errors import LayoutUnknown
from tranche.core.profile import ProfileName
from tranche.core.spelling import did_you_mean
from tranche.core.state import GpuState, NodeState

_NUMBER = re.compile(r"0x[0-9a-f_]+|0b[01_]+|0o?[0-7_]*|[1-9][0-9_]*", re.ASCII | re.IGNORECASE)
_LARGEST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """One entry of `device-filter`: `0xDDDDVVVV`, optionally with `:0xSSSSVVVV` to restrict it to a subsystem.

    `device` and `subsystem` are the parsed ids; `device` is None if the entry is malformed. The format accepts malformed entries,
    but they match nothing.
    """

    text: str
    device: int | None
    subsystem: int | None = None

    @property
    def malformed(self) -> bool:
        """Whether the entry is malformed, and so matches no GPU."""
        return self.device is None

    @property
    def names_a_board(self) -> bool:
        """Whether the catalogue has a board with this device id."""
        return self.device is not None and board_by_pci_id(f"0x{self.device:08X}") is not None

    def matches(self, pci_device_id: str, pci_subsystem_id: str) -> bool:
        """Whether the filter matches these ids (`0xDDDDVVVV`; the subsystem may be empty when unknown)."""
        if self.device is None or self.device != _parse_number(pci_device_id):
            return False
        return self.subsystem is None or self.subsystem == _parse_number(pci_subsystem_id)


def parse_device_filter(text: str) -> DeviceFilter:
    """Parse a filter; never raises."""
    numbers = [_parse_number(part) for part in text.split(":")]
    if len(numbers) > 2 or None in numbers:
        return DeviceFilter(text, None)
    return DeviceFilter(text, numbers[0], numbers[1] if len(numbers) == 2 else None)


def _parse_number(text: str) -> int | None:
    """An unsigned 32-bit number with its base in the prefix; None if malformed."""
    if _NUMBER.fullmatch(text) is None:
        return None
    # A leading 0 alone means octal, which Python writes 0o.
    spelled = "0o" + text[1:] if re.fullmatch(r"0[0-7_]+", text) else text
    try:
        number = int(spelled, 0)
    except ValueError:
        return None
    return number if number <= _LARGEST else None


@dataclass(frozen=True, slots=True)
class LayoutSpec:
    """The declared state of some GPUs.

    `devices` lists GPU indexes; None means all. `filters` match when any of them does; without filters the spec matches every GPU
    product. `slices` maps profile to count, without zero counts, sorted by profile.
    """

    mig_enabled: bool
    slices: tuple[tuple[ProfileName, int], ...] = ()
    devices: tuple[int, ...] | None = None
    filters: tuple[DeviceFilter, ...] = ()

    def matches(self, gpu: GpuState) -> bool:
        """Whether the spec applies to that GPU."""
        return self.matches_product(gpu) and (self.devices is None or gpu.index in self.devices)

    def matches_product(self, gpu: GpuState) -> bool:
        """Whether one of the filters, if there are any, matches the GPU's product."""
        return not self.filters or any(f.matches(gpu.pci_device_id, gpu.pci_subsystem_id) for f in self.filters)

    @property
    def slice_list(self) -> tuple[ProfileName, ...]:
        """The wanted slices, repeated by count, sorted."""
        return tuple(chain.from_iterable(repeat(profile, count) for profile, count in self.slices))

    @property
    def skips_gpus_without_mig(self) -> bool:
        """Whether to skip GPUs that cannot be cut: the spec turns MIG off, or does not name GPUs by index."""
        return self.devices is None or not self.mig_enabled


@dataclass(frozen=True, slots=True)
class Layout:
    """A named list of specs. Where several match one GPU, the last one counts."""

    name: str
    specs: tuple[LayoutSpec, ...]

    def spec_for(self, gpu: GpuState) -> LayoutSpec | None:
        """The spec for that GPU; None if there is none."""
        return next((spec for spec in reversed(self.specs) if spec.matches(gpu)), None)

    def warnings(self, node: NodeState) -> tuple[str, ...]:
        """Probable mistakes: malformed filters, and filters or indexes that match no GPU on the machine.

        Layouts are written for many boards: a filter for a known board is no mistake if the layout covers some GPU of this
        machine. A layout of several entries that covers none gives one warning.
        """
        speaks = any(spec.matches(gpu) for spec in self.specs for gpu in node)
        silent = not speaks and len(self.specs) > 1
        found = [
            f"layout '{self.name}', entry {number}: {text}"
            for number, spec in enumerate(self.specs, start=1)
            for text in _spec_warnings(spec, node, other_boards=speaks or silent)
        ]
        if silent:
            found.append(f"layout '{self.name}': none of its {len(self.specs)} entries matches a GPU on this machine")
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class LayoutFile:
    """The layouts of one file, in its order. `source` names the file in messages."""

    layouts: tuple[Layout, ...] = ()
    source: str = field(default="the configuration file", compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The layouts' names, in the file's order."""
        return tuple(layout.name for layout in self.layouts)

    def select(self, name: str | None) -> Layout:
        """The layout of that name, or the only one if no name is given; raises LayoutUnknown."""
        none = f"{self.source} has no layouts"
        offered = f"{self.source} has the layouts {', '.join(self.names)}" if self.layouts else none
        if name is None and len(self.layouts) == 1:
            return self.layouts[0]
        if name is None and not self.layouts:
            raise LayoutUnknown(none, hint="add one under 'mig-configs'")
        if name is None:
            raise LayoutUnknown(
                "missing required flag 'selected-config' when more than one config available",
                hint=f"choose one with -c; {offered}",
            )
        for layout in self.layouts:
            if layout.name == name:
                return layout
        raise LayoutUnknown(
            f"selected mig-config not present: {name}",
            hint=f"{did_you_mean(name or '', self.names)}{offered}",
        )


def describe_slices(counts: Mapping[ProfileName, int]) -> str:
    """Slices for people, largest first: `1x 3g.40gb, 2x 1g.10gb`."""
    return ", ".join(f"{count}x {profile}" for profile, count in sorted(counts.items(), reverse=True))


def _spec_warnings(spec: LayoutSpec, node: NodeState, *, other_boards: bool) -> list[str]:
    """With `other_boards`, skips filters for known boards that the machine lacks."""
    warnings = []
    for device_filter in spec.filters:
        if device_filter.malformed:
            warnings.append(f"device-filter '{device_filter.text}' is not a PCI id and matches no GPU")
        elif other_boards and device_filter.names_a_board:
            continue
        elif not any(device_filter.matches(gpu.pci_device_id, gpu.pci_subsystem_id) for gpu in node):
            warnings.append(f"device-filter '{device_filter.text}' matches no GPU on this machine")
    if spec.devices is None:
        return warnings
    if not spec.devices:
        warnings.append("'devices' is empty and matches no GPU")
    present = {gpu.index: gpu for gpu in node}
    for index in dict.fromkeys(spec.devices):
        if index not in present:
            warnings.append(f"device index {index} matches no GPU: this machine has {len(present)}")
        elif not spec.matches_product(present[index]):
            warnings.append(f"device index {index} does not match its device-filter")
    return warnings
