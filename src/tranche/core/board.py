"""How each GPU product can be cut: the typed catalogue of `tranche_simulator`.

Numbers without a source are None. Numbers inferred from a board's family are present and listed in `unverified`. On a machine
with a driver the driver's own answers win; the catalogue stands in for absent boards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from tranche.core.profile import ProfileName, parse_profile
from tranche.core.quantity import MIB
from tranche_simulator.catalogue import families, mig_models


class _Family(NamedTuple):
    """Boards of one architecture, and the rules that apply to all of them.

    `nvml_architecture` is NVML's NVML_DEVICE_ARCH_* value. `capabilities` are its compute capabilities as (major, least minor,
    greatest minor). `label` is its name in GPU feature discovery.
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
    """The family of boards with that compute capability."""
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
    """The family for a driver's NVML number. If several share the number, or it is unknown, the board's family."""
    own = next((f for f in all_families() if f.name == board_family), None)
    named = [f for f in all_families() if nvml_architecture is not None and f.nvml_architecture == nvml_architecture]
    return own if not named or own in named else named[0]


class ComputeInstanceProfile(NamedTuple):
    """A way to cut the inside of a GPU instance.

    `enum` is NVML's NVML_COMPUTE_INSTANCE_PROFILE_* value, `id` what nvidia-smi prints; they agree in every listing seen.
    `slices` counts compute slices, `sm` multiprocessors (None: no source).
    """

    name: ProfileName
    enum: int
    id: int
    slices: int
    sm: int | None
    max_instances: int
    unverified: frozenset[str] = frozenset()


class GpuInstanceProfile(NamedTuple):
    """A way to cut a GPU, on one board.

    `enum` is NVML's NVML_GPU_INSTANCE_PROFILE_* value, for profile queries. `id` is the number that nvidia-smi prints and
    creation takes. `memory` is in bytes, as the driver reports it; `other_memory` is what other drivers reported. `starts` and
    `size` are memory-slice units.
    """

    name: ProfileName
    enum: int
    id: int | None
    slices: int
    memory: int | None
    sm: int | None
    copy_engines: int | None
    decoders: int | None
    encoders: int | None
    jpeg: int | None
    ofa: int | None
    max_instances: int
    starts: tuple[int, ...]
    size: int
    compute_profiles: tuple[ComputeInstanceProfile, ...] = ()
    unverified: frozenset[str] = frozenset()
    other_memory: tuple[int, ...] = ()


class Board(NamedTuple):
    """One GPU product, or several that are cut alike.

    `pci_device_ids` are `0xDDDDVVVV` as layout filters write them. `memory` is in bytes. `memory_slices` is the length of the
    placement grid, None without a source.
    """

    key: str
    products: tuple[str, ...]
    architecture: str
    compute_capability: str
    pci_device_ids: tuple[str, ...]
    memory: int | None
    sm: int | None
    compute_slices: int
    memory_slices: int | None
    max_mig_devices: int
    mode_change_needs_reset: bool
    profiles: tuple[GpuInstanceProfile, ...]
    unverified: tuple[str, ...]
    note: str

    def profile(self, name: ProfileName) -> GpuInstanceProfile | None:
        """The GPU-instance profile for a slice of that name."""
        return next((p for p in self.profiles if p.name == name.gpu_instance), None)


def catalogue() -> tuple[Board, ...]:
    """Every known MIG-capable board, in the catalogue's order."""
    return tuple(_board_at(index) for index in range(len(mig_models())))


def board_by_key(key: str) -> Board | None:
    """The board with that catalogue key, case-insensitive."""
    return _first(lambda model: model["key"].lower() == key.lower())


def board_by_pci_id(pci_device_id: str) -> Board | None:
    """The board with the PCI device and vendor id `0xDDDDVVVV`."""
    return _first(lambda model: pci_device_id in model["pci_device_ids"])


def board_of(pci_device_id: str, name: str, memory: int) -> Board | None:
    """The board of a GPU that a driver describes; `memory` in bytes, `name` as the driver gives it.

    A PCI id alone is ambiguous: boards with the same id have been sold with different memory. If the memory contradicts the PCI
    id, the product name decides. Without a matching name the board is unknown.
    """
    board = board_by_pci_id(pci_device_id)
    if board is None or _has_memory(board, memory):
        return board
    wanted = name.removeprefix("NVIDIA ")
    named = (each for each in catalogue() if wanted in {product.removeprefix("NVIDIA ") for product in each.products})
    return next((each for each in named if _has_memory(each, memory)), None)


def _has_memory(board: Board, memory: int) -> bool:
    """Compares within a tenth: error correction and reserved memory change the total that drivers report."""
    return board.memory is None or abs(board.memory - memory) <= board.memory // 10


@cache
def _board_at(index: int) -> Board:
    """Boards are built on demand, because a command meets only one or two."""
    return _board(mig_models()[index])


def _first(wanted: Callable[[Mapping[str, Any]], bool]) -> Board | None:
    return next((_board_at(index) for index, model in enumerate(mig_models()) if wanted(model)), None)


def _board(model: Mapping[str, Any]) -> Board:
    return Board(
        key=model["key"],
        products=tuple(model["products"]),
        architecture=model["arch"],
        compute_capability=model["compute_capability"] or "",
        pci_device_ids=tuple(model["pci_device_ids"]),
        memory=_bytes(model["memory_total_mib"]),
        sm=model["sm_total"],
        compute_slices=model["compute_slices"],
        memory_slices=model["placement_units"],
        max_mig_devices=model["max_mig_devices"],
        mode_change_needs_reset=next(f.mode_change_needs_reset for f in all_families() if f.name == model["arch"]),
        profiles=tuple(_gpu_instance_profile(profile) for profile in model["profiles"]),
        unverified=tuple(model["unverified"]),
        note=model["note"],
    )


def _gpu_instance_profile(data: Mapping[str, Any]) -> GpuInstanceProfile:
    return GpuInstanceProfile(
        name=parse_profile(data["name"]),
        enum=data["nvml_enum_value"],
        id=data["profile_id"],
        slices=data["slice_count"],
        memory=_bytes(data["memory_mib"]),
        sm=data["sm"],
        copy_engines=data["copy_engines"],
        decoders=data["decoders"],
        encoders=data["encoders"],
        jpeg=data["jpeg"],
        ofa=data["ofa"],
        max_instances=data["max_instances"],
        starts=tuple(data["placement_starts"] or ()),
        size=data["placement_size"] or 0,
        compute_profiles=tuple(_compute_instance_profile(ci) for ci in data["ci_profiles"]),
        unverified=frozenset(data["unverified"]),
        other_memory=tuple(mib * MIB for mib in data["memory_mib_other_drivers"]),
    )


def _compute_instance_profile(data: Mapping[str, Any]) -> ComputeInstanceProfile:
    return ComputeInstanceProfile(
        name=parse_profile(data["name"]),
        enum=data["ci_profile_id"],
        id=data["ci_profile_id"],
        slices=data["slices"],
        sm=data["sm"],
        max_instances=data["max_instances"],
        unverified=frozenset(data["unverified"]),
    )


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB
