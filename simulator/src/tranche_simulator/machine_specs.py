"""The GPUs of a new machine, chosen by machine type, by board or one by one, in the form of the control interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tranche_simulator import library
from tranche_simulator.board_tables import load_models, product_names
from tranche_simulator.catalogue import Model
from tranche_simulator.errors import InvalidRequest
from tranche_simulator.machines import MACHINE_TYPES, GpuSpec, in_a_row


def chosen_gpus(machine_type: str, boards: Sequence[str], gpus: Sequence[GpuSpec]) -> Sequence[GpuSpec]:
    """The GPUs of a machine type, of boards (catalogue keys or product names), or those given; InvalidRequest otherwise."""
    if sum(map(bool, (machine_type, boards, gpus))) != 1:
        raise InvalidRequest("give either a machine type or its boards")
    if machine_type:
        if machine_type not in MACHINE_TYPES:
            raise InvalidRequest(
                f"unknown machine type {machine_type!r}", hint=f"known types: {', '.join(MACHINE_TYPES)}"
            )
        return MACHINE_TYPES[machine_type].gpus
    if boards:
        by_key = {str(model["key"]): model for model in load_models()}
        return in_a_row([_board_and_product(board, by_key) for board in boards])
    return gpus


def _board_and_product(board: str, by_key: Mapping[str, Model]) -> tuple[str, int]:
    """Board and product of a catalogue key, in any case, or of a product name, with or without "NVIDIA"."""
    wanted = board.lower().removeprefix("nvidia ")
    for key, model in by_key.items():
        names = [name.lower().removeprefix("nvidia ") for name in product_names(model)]
        if wanted == key.lower():
            return key, 0
        if wanted in names:
            return key, names.index(wanted)
    raise InvalidRequest(f"unknown board {board!r}", hint=f"known boards: {', '.join(by_key)}")


def spec_structs(specs: Sequence[GpuSpec]) -> object:
    """The GPUs in the form of the control interface: an array of trancheSimGpuSpec_t."""
    models = {model["key"]: model for model in load_models()}
    structs = (library.GpuSpecStruct * len(specs))()
    for struct, spec in zip(structs, specs, strict=True):
        model = models[spec.board]
        device_ids = model["pci_device_ids"]
        struct.board = spec.board.encode()
        struct.name = product_names(model)[spec.product].encode()
        struct.pci_device_id = int(device_ids[min(spec.product, len(device_ids) - 1)], 16)
        struct.swapped = int(spec.swapped)
        struct.numa_node = spec.numa_node
        struct.pci_domain, struct.pci_bus, struct.pci_device = spec.pci
    return structs
