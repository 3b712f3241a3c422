"""Differences between a driver's answers about a GPU and the catalogue's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tranche.core.board import Board, GpuInstanceProfile
from tranche.core.quantity import MIB
from tranche.core.state import GpuState

# The catalogue's names for the fields that its profiles mark as unverified.
_FIELDS = {
    "id": "profile_id",
    "slices": "slice_count",
    "memory": "memory_mib",
    "sm": "sm",
    "copy_engines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg": "jpeg",
    "ofa": "ofa",
    "max_instances": "max_instances",
    "starts": "placements",
    "size": "placements",
}


@dataclass(frozen=True, slots=True)
class _Difference:
    """One field of a profile on which driver and catalogue disagree; `-` means no value.

    `explained` says why the difference is expected: other drivers report the value, or the catalogue's is unverified or absent.
    """

    profile: str
    field: str
    driver: str
    catalogue: str
    explained: str = ""

    def __str__(self) -> str:
        text = f"{self.profile} {self.field}: the driver reports {self.driver}, the catalogue {self.catalogue}"
        return f"{text} ({self.explained})" if self.explained else text


def board_differences(gpu: GpuState, board: Board) -> tuple[_Difference, ...]:
    """Every difference between the driver's profiles of the GPU and the catalogue's profiles of the board.

    Profiles are paired by NVML's enum value. Returns nothing if the GPU's profiles came from the catalogue.
    """
    if gpu.profiles_source != "driver" or not gpu.profiles:
        return ()
    said = {profile.enum: profile for profile in gpu.profiles}
    known = {profile.enum: profile for profile in board.profiles}
    found: list[_Difference] = []
    for enum in sorted(said.keys() | known.keys()):
        if enum not in known:
            found.append(_Difference(str(said[enum].name), "profile", "present", "-"))
        elif enum not in said:
            found.append(_Difference(str(known[enum].name), "profile", "-", "present"))
        else:
            found += _profile_differences(said[enum], known[enum])
    return tuple(found)


def unverified_fields(profile: GpuInstanceProfile) -> frozenset[str]:
    """The catalogue's names for the fields without a first-hand source, without trailing remarks."""
    return frozenset(word.split(" ", 1)[0] for word in profile.unverified)


def _profile_differences(said: GpuInstanceProfile, known: GpuInstanceProfile) -> Iterator[_Difference]:
    if said.name != known.name:
        yield _Difference(str(known.name), "name", str(said.name), str(known.name))
    unverified = unverified_fields(known)
    for field, word in _FIELDS.items():
        driver, catalogue = getattr(said, field), getattr(known, field)
        if driver in (catalogue, None):
            continue
        explained = ""
        if catalogue is None or (word == "placements" and not known.starts):
            explained = "the catalogue has no source for it"
        elif field == "memory" and driver in known.other_memory:
            explained = "known from other drivers"
        elif word in unverified:
            explained = "unverified in the catalogue"
        yield _Difference(str(known.name), field, _text(field, driver), _text(field, catalogue), explained)


def _text(field: str, value: object) -> str:
    if value is None:
        return "-"
    if field == "memory" and isinstance(value, int):
        return f"{value // MIB} MiB"
    if isinstance(value, tuple):
        return "{" + ",".join(map(str, value)) + "}"
    return str(value)
