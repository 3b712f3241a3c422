"""GPU-instance profiles as rows for people, with what is unverified marked."""

from __future__ import annotations

from collections.abc import Iterable

from tranche.core.board import GpuInstanceProfile
from tranche.core.board_difference import unverified_fields
from tranche.core.quantity import GIB

COLUMNS = ("PROFILE", "ID", "MEMORY GiB", "SM", "SLICES", "CE", "DEC", "ENC", "JPEG", "OFA", "MAX", "PLACEMENTS")
WIDE_COLUMNS = (*COLUMNS, "COMPUTE INSTANCES")


def profile_row(profile: GpuInstanceProfile, *, wide: bool) -> list[object]:
    """The profile under COLUMNS, or WIDE_COLUMNS. `?` alone: no source; after a value: inferred, not seen."""
    doubtful = unverified_fields(profile)

    def shown(value: object, word: str) -> str:
        if value is None:
            return "?"
        return f"{value}?" if word in doubtful else str(value)

    memory = None if profile.memory is None else f"{profile.memory / GIB:.2f}"
    starts = "{" + ",".join(map(str, profile.starts)) + f"}}:{profile.size}" if profile.starts else None
    row: list[object] = [
        str(profile.name),
        shown(profile.id, "profile_id"),
        shown(memory, "memory_mib"),
        shown(profile.sm, "sm"),
        profile.slices,
        shown(profile.copy_engines, "copy_engines"),
        shown(profile.decoders, "decoders"),
        shown(profile.encoders, "encoders"),
        shown(profile.jpeg, "jpeg"),
        shown(profile.ofa, "ofa"),
        profile.max_instances,
        shown(starts, "placements"),
    ]
    if wide:
        row.append(", ".join(f"{inside.max_instances}x {inside.name}" for inside in profile.compute_profiles))
    return row


def unverified_note(profiles: Iterable[GpuInstanceProfile]) -> str:
    """The footnote that explains the question marks; empty when there are none."""
    if any("?" in str(cell) for profile in profiles for cell in profile_row(profile, wide=False)):
        return "? unverified: copied or inferred from a board of the same family; a ? alone: no source shows it"
    return ""
