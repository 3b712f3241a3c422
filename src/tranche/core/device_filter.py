"""Filters on PCI device and subsystem ids, in the v1 layout format: they select the GPU products of a layout."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tranche.core.board import board_by_pci_id

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
