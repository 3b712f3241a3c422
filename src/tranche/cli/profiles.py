"""`tranche profiles`: what a GPU can be cut into, and what is free now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from tranche.cli import completion
from tranche.cli.output import print_json, print_table, say, show
from tranche.cli.runtime import Settings, TrancheCommand, observe, output_option
from tranche.core.board import Board, GpuInstanceProfile, board_by_key, board_of, catalogue
from tranche.core.board_difference import unverified_fields
from tranche.core.errors import DriverNotFound, HardwareError, MigNotSupported, UsageError
from tranche.core.grid import remaining_capacity
from tranche.core.quantity import GIB, format_memory
from tranche.core.state import GpuState, NodeState
from tranche.documents import describe


@click.command(cls=TrancheCommand)
@click.option(
    "--board",
    metavar="NAME",
    shell_complete=completion.boards,
    help="Board in the catalogue, by key or product name; needs no driver.",
)
@click.option("--gpu", metavar="N", help="GPU on this machine, by index or UUID.")
@click.option("--boards", is_flag=True, help="List the boards in the catalogue.")
@output_option("table", "wide", "json")
@click.pass_obj
def command(settings: Settings, /, board: str | None, gpu: str | None, boards: bool, output: str) -> None:
    """List the MIG profiles of GPUs and boards.

    Without options, the list contains the profiles of this machine's GPUs. FREE is the number of instances that fit
    next to the existing instances, busy or idle. PLACEMENTS has the form {starts}:size, in memory slices.

    \b
    $ tranche profiles --gpu 0
    $ tranche profiles --board H100-80GB-SXM -o wide
    """
    if sum((board is not None, gpu is not None, boards)) > 1:
        raise UsageError("--board, --gpu and --boards cannot be combined", hint="give one of them")
    if boards:
        _show_catalogue(output)
    elif board is not None:
        found = find_board(board)
        _show([_Sheet.of_board(found)], output)
    else:
        node = _observe(settings)
        _show(_machine_sheets(node) if gpu is None else [_Sheet.of_gpu(_find_gpu(node, gpu))], output)


@dataclass(frozen=True, slots=True)
class _Sheet:
    """One table of profiles, with what it is about; `free` maps a profile's enum to how many more of it fit now."""

    board: Board | None
    products: tuple[str, ...]
    memory: int | None
    profiles: tuple[GpuInstanceProfile, ...]
    source: str
    gpus: tuple[int, ...]
    free: Mapping[int, int] | None

    @classmethod
    def of_board(cls, board: Board) -> _Sheet:
        return cls(board, board.products, board.memory, _sorted(board.profiles), "catalogue", (), None)

    @classmethod
    def of_gpu(cls, gpu: GpuState, *, alike: Sequence[int] = ()) -> _Sheet:
        free = None
        if gpu.mig_enabled and not alike:
            free = {p.enum: remaining_capacity(p, gpu.occupants) for p in gpu.profiles}
        board = board_of(gpu.pci_device_id, gpu.name, gpu.memory)
        profiles = _sorted(gpu.profiles)
        return cls(board, (gpu.name,), gpu.memory, profiles, gpu.profiles_source, tuple(alike) or (gpu.index,), free)

    @property
    def title(self) -> str:
        names = ", ".join(self.products)
        size = "" if self.memory is None else f" ({format_memory(self.memory)})"
        if self.gpus:
            return f"GPU {describe.ranges(self.gpus)}: {names}{size}"
        assert self.board is not None
        return f"{self.board.key}: {names}{size}, {self.board.architecture}"

    @property
    def unverified(self) -> tuple[str, ...]:
        return () if self.board is None or self.source == "driver" else self.board.unverified

    def document(self) -> dict[str, Any]:
        return {
            "board": None if self.board is None else self.board.key,
            "products": list(self.products),
            "memoryBytes": self.memory,
            "source": self.source,
            "gpus": list(self.gpus),
            "unverified": list(self.unverified),
            "profiles": [
                {**_profile_document(p), "free": None if self.free is None else self.free[p.enum]}
                for p in self.profiles
            ],
        }


def find_board(name: str) -> Board:
    """The catalogue's board of that key or product name, with or without `NVIDIA`; UsageError otherwise."""
    wanted = name.lower().removeprefix("nvidia ")
    found = board_by_key(name)
    if found is not None:
        return found
    for board in catalogue():
        if any(product.lower().removeprefix("nvidia ") == wanted for product in board.products):
            return board
    alike = [board.key for board in catalogue() if wanted and wanted in board.key.lower()]
    known = f"did you mean {' or '.join(alike)}?" if alike else "list the boards with: tranche profiles --boards"
    raise UsageError(f"the catalogue has no board '{name}'", hint=known)


def _sorted(profiles: Iterable[GpuInstanceProfile]) -> tuple[GpuInstanceProfile, ...]:
    return tuple(sorted(profiles, key=lambda profile: (profile.slices, profile.size, profile.enum)))


def _observe(settings: Settings) -> NodeState:
    try:
        return observe(settings)
    except DriverNotFound as error:
        raise DriverNotFound(
            error.message,
            hint="for a board in the catalogue, run: tranche profiles --board A100-40GB; list the boards with --boards",
        ) from error


def _find_gpu(node: NodeState, name: str) -> GpuState:
    is_index = (
        name.isascii() and name.isdigit() and len(name) <= 18
    )  # int() refuses thousands of digits in its own words
    gpu = node.by_index(int(name)) if is_index else node.gpu(name)
    if gpu.lost:
        raise HardwareError(f"the driver has lost {gpu.label}", hint="to see what is wrong, run: tranche doctor")
    if not gpu.mig_capable:
        raise MigNotSupported(
            f"{gpu.label} ({gpu.name}) cannot be partitioned: it does not support MIG",
            hint="request the whole GPU: tranche run --gpus 1",
        )
    return gpu


def _machine_sheets(node: NodeState) -> list[_Sheet]:
    """One sheet for each kind of GPU; a GPU whose driver answers speaks for its kind."""
    kinds: dict[tuple[str, str], list[GpuState]] = {}
    for gpu in node:
        if gpu.mig_capable:
            kinds.setdefault((gpu.name, gpu.pci_device_id), []).append(gpu)
        else:
            say(
                f"the driver has lost {gpu.label}"
                if gpu.lost
                else f"{gpu.label} ({gpu.name}) cannot be partitioned: it does not support MIG"
            )
    return [
        _Sheet.of_gpu(
            next((gpu for gpu in alike if gpu.profiles_source == "driver"), alike[0]), alike=[g.index for g in alike]
        )
        for alike in kinds.values()
    ]


def _show(sheets: Sequence[_Sheet], output: str) -> None:
    if output == "json":
        print_json("ProfileList", boards=[sheet.document() for sheet in sheets])
        return
    for number, sheet in enumerate(sheets):
        if number:
            show()
        show(sheet.title)
        wide = output == "wide"
        columns = list(_WIDE_COLUMNS if wide else _COLUMNS)
        rows = [_profile_row(p, wide=wide) for p in sheet.profiles]
        if sheet.free is not None:
            columns.insert(1, "FREE")
            for row, profile in zip(rows, sheet.profiles, strict=True):
                row.insert(1, sheet.free[profile.enum])
        print_table(columns, rows)
        if sheet.gpus and sheet.source == "catalogue":
            say("this driver describes profiles only with MIG mode on; the table shows the catalogue's profiles")
        if any("?" in str(cell) for row in rows for cell in row):
            show(_UNVERIFIED)
        if sheet.unverified:
            show(f"unverified for the board: {'; '.join(sheet.unverified)}")


def _show_catalogue(output: str) -> None:
    if output == "json":
        print_json("BoardList", boards=[_board_document(board) for board in catalogue()])
        return
    rows = [
        (
            board.key,
            "?" if board.memory is None else format_memory(board.memory),
            "?" if board.sm is None else board.sm,
            board.compute_slices,
            "?" if board.memory_slices is None else board.memory_slices,
            board.architecture,
            len(board.profiles),
            ", ".join(board.products),
        )
        for board in catalogue()
    ]
    print_table(("BOARD", "MEMORY", "SM", "COMPUTE", "GRID", "ARCHITECTURE", "PROFILES", "PRODUCTS"), rows)
    show("? no known source")


_COLUMNS = ("PROFILE", "ID", "MEMORY GiB", "SM", "SLICES", "CE", "DEC", "ENC", "JPEG", "OFA", "MAX", "PLACEMENTS")
_WIDE_COLUMNS = (*_COLUMNS, "COMPUTE INSTANCES")
_UNVERIFIED = (
    "? after a value: unverified, copied or inferred from a board of the same family; ? on its own: no known source"
)


def _profile_row(profile: GpuInstanceProfile, *, wide: bool) -> list[object]:
    """The profile under _COLUMNS, or _WIDE_COLUMNS. `?` alone: no source; after a value: inferred, not seen."""
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


def _board_document(board: Board) -> dict[str, Any]:
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


def _profile_document(profile: GpuInstanceProfile) -> dict[str, Any]:
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
