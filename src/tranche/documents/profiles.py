"""Boards and their profiles."""

from __future__ import annotations

from typing import Any

from tranche.core.board import Board, GpuInstanceProfile


def board_document(board: Board) -> dict[str, Any]:
    """One board of the catalogue; fields named in `unverified` have no first-hand source."""
    return {
        "board": board.key,
        "products": list(board.products),
        "architecture": board.architecture,
        "computeCapability": board.compute_capability,
        "pciDeviceIds": list(board.pci_device_ids),
        "memoryBytes": board.memory,
        "sm": board.sm,
        "computeSlices": board.compute_slices,
        "memorySlices": board.memory_slices,
        "maxMigDevices": board.max_mig_devices,
        "modeChangeNeedsReset": board.mode_change_needs_reset,
        "profiles": [str(profile.name) for profile in board.profiles],
        "unverified": list(board.unverified),
        "note": board.note,
    }


def profile_document(profile: GpuInstanceProfile) -> dict[str, Any]:
    """One GPU-instance profile of a board; fields named in `unverified` have no first-hand source."""
    return {
        "name": str(profile.name),
        "enum": profile.enum,
        "id": profile.id,
        "memoryBytes": profile.memory,
        "otherMemoryBytes": list(profile.other_memory),
        "sm": profile.sm,
        "slices": profile.slices,
        "copyEngines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpeg": profile.jpeg,
        "ofa": profile.ofa,
        "maxInstances": profile.max_instances,
        "placements": [{"start": start, "size": profile.size} for start in profile.starts],
        "computeProfiles": [
            {
                "name": str(inside.name),
                "enum": inside.enum,
                "id": inside.id,
                "slices": inside.slices,
                "sm": inside.sm,
                "maxInstances": inside.max_instances,
                "unverified": sorted(inside.unverified),
            }
            for inside in profile.compute_profiles
        ],
        "unverified": sorted(profile.unverified),
    }
