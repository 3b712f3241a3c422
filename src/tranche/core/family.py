"""Families of boards: what holds for every board of one architecture, from the catalogue of `tranche_simulator`."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tranche_simulator.catalogue import families


class _Family(NamedTuple):
    """Boards of one architecture, and the rules that hold for all of them.

    `nvml_architecture` is NVML's NVML_DEVICE_ARCH_* value; `capabilities` are (major, least minor, greatest minor) of its compute
    capabilities; `label` is how GPU feature discovery writes it.
    """

    name: str
    nvml_architecture: int | None
    capabilities: tuple[tuple[int, int, int], ...]
    label: str
    mode_change_needs_reset: bool


@cache
def all_families() -> tuple[_Family, ...]:
    """Every known family, oldest first."""
    return tuple(
        _Family(
            name=data["name"],
            nvml_architecture=data["nvml_architecture"],
            capabilities=tuple((major, least, greatest) for major, least, greatest in data["compute_capabilities"]),
            label=data["feature_label"],
            mode_change_needs_reset=data["mode_change_needs_reset"],
        )
        for data in families()
    )


def family_of_capability(major: int, minor: int) -> _Family | None:
    """The family whose boards have that compute capability."""
    return next(
        (
            f
            for f in all_families()
            for m, least, greatest in f.capabilities
            if m == major and least <= minor <= greatest
        ),
        None,
    )


def family_of_architecture(nvml_architecture: int | None, board_family: str | None) -> _Family | None:
    """The family that a driver names by NVML's number; where several have it, or no number is known, that of the board."""
    own = next((f for f in all_families() if f.name == board_family), None)
    named = [f for f in all_families() if nvml_architecture is not None and f.nvml_architecture == nvml_architecture]
    return own if not named or own in named else named[0]
