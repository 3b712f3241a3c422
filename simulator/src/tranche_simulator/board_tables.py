"""Turns the board catalogue into the C tables that the simulator library is compiled with.

Where the catalogue has no number, a value is derived from the board's family and the entry is marked unverified.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tranche_simulator.catalogue import Model, families, mig_models, plain_models

BRAND_NVIDIA_RTX, BRAND_NVIDIA = 13, 14


@dataclass(frozen=True, slots=True)
class Electrical:
    """Readings of a board that are not part of its MIG geometry: plausible constants, shown by monitoring tools."""

    watts: int
    sm_mhz: int
    memory_mhz: int
    bus_bits: int
    nvlinks: int
    pcie_generation: int


ELECTRICAL: Mapping[str, Electrical] = {
    "T4": Electrical(70, 1590, 5001, 256, 0, 3),
    "A10G": Electrical(300, 1710, 6251, 384, 0, 4),
    "L4": Electrical(72, 2040, 6251, 192, 0, 4),
    "A30-24GB": Electrical(165, 1440, 1215, 3072, 4, 4),
    "A30X-24GB": Electrical(230, 1440, 1215, 3072, 4, 4),
    "A100-40GB": Electrical(400, 1410, 1215, 5120, 12, 4),
    "A100-80GB": Electrical(400, 1410, 1593, 5120, 12, 4),
    "A100X-80GB": Electrical(300, 1440, 1593, 5120, 12, 4),
    "PG506-96GB": Electrical(400, 1410, 1593, 6144, 12, 4),
    "H100-80GB-SXM": Electrical(700, 1980, 2619, 5120, 18, 5),
    "H100-80GB-PCIe": Electrical(350, 1755, 1593, 5120, 12, 5),
    "H100-NVL-94GB": Electrical(400, 1785, 2619, 6016, 12, 5),
    "H100-SXM5-94GB": Electrical(700, 1980, 2619, 6016, 18, 5),
    "H100-SXM5-64GB": Electrical(700, 1980, 2619, 4096, 18, 5),
    "GH200-96GB": Electrical(700, 1980, 2619, 6144, 18, 5),
    "GH200-144GB": Electrical(700, 1980, 3201, 6144, 18, 5),
    "H200-141GB": Electrical(700, 1980, 3201, 6016, 18, 5),
    "H20-96GB": Electrical(500, 1980, 2619, 6144, 18, 5),
    "H20-141GB": Electrical(500, 1980, 3201, 6144, 18, 5),
    "B200": Electrical(1000, 1965, 3996, 8192, 18, 6),
    "GB200": Electrical(1200, 1965, 3996, 8192, 18, 6),
    "B300": Electrical(1100, 1920, 3996, 8192, 18, 6),
    "GB300": Electrical(1400, 1920, 3996, 8192, 18, 6),
    "RTX-PRO-6000-96GB": Electrical(600, 2430, 14001, 512, 0, 5),
    "RTX-PRO-5000-48GB": Electrical(300, 2617, 14001, 384, 0, 5),
    "RTX-PRO-4500-32GB": Electrical(200, 2617, 14001, 256, 0, 5),
}

SEVEN_SLICE_NORMAL = {0: (0, 8), 1: (0, 4), 2: (4, 4), 3: (0, 2), 4: (2, 2), 5: (4, 2), 6: (6, 2)} | {
    7 + start: (start, 1) for start in range(7)
}
SEVEN_SLICE_SWAPPED = {0: (0, 8), 1: (4, 4), 2: (0, 4), 3: (4, 2), 4: (6, 2), 5: (0, 2), 6: (2, 2)} | {
    7: (4, 1),
    8: (5, 1),
    9: (6, 1),
    11: (0, 1),
    12: (1, 1),
    13: (2, 1),
    14: (3, 1),
}
FOUR_SLICE = {0: (0, 4), 1: (0, 2), 2: (2, 2), 3: (0, 1), 4: (1, 1), 5: (2, 1), 6: (3, 1)}
TWELVE_UNITS = {0: (0, 12), 1: (0, 6), 2: (6, 6), 3: (0, 3), 4: (3, 3), 5: (6, 3), 6: (9, 3)}
TWO_SLICE = {0: (0, 2), 1: (0, 1), 2: (1, 1)}
GI_SLOTS: Mapping[int, tuple[Mapping[int, tuple[int, int]], Mapping[int, tuple[int, int]]]] = {
    # Placement units of the board -> GI id -> (start, size), for both orientations of the die.
    8: (SEVEN_SLICE_NORMAL, SEVEN_SLICE_SWAPPED),
    4: (FOUR_SLICE, FOUR_SLICE),
    12: (TWELVE_UNITS, TWELVE_UNITS),
    2: (TWO_SLICE, TWO_SLICE),
}
ID_BY_ENUM = {0: 14, 7: 21, 10: 47, 15: 65, 13: 67, 1: 5, 11: 35, 16: 64, 14: 66}  # as on RTX PRO 6000
NVIDIA = "0x000010DE"  # a subsystem with only the vendor known
RESERVED_SHARE = 0.006  # of the memory, between what H100 and A100 reserve


def load_models() -> list[Model]:
    """Every board of the catalogue, boards with MIG first."""
    return [*mig_models(), *plain_models()]


def product_names(model: Model) -> list[str]:
    """Product names as the driver reports them, in the order of the model's products."""
    first = str(model["products"][0])
    names = []
    for product in model["products"]:
        name = str(product)
        if name.startswith("... "):  # the catalogue abbreviates "RTX PRO 6000 Blackwell Server Edition"
            name = first.removesuffix(" Server Edition") + name.removeprefix("...")
        names.append(name if name.startswith(("NVIDIA ", "Tesla ")) else f"NVIDIA {name}")
    return names


def memory_mib_of(model: Model) -> int:
    """Total memory; if unknown, from the name of the largest profile ("7g.96gb")."""
    total = model["memory_total_mib"]
    if total is None:
        total = max(
            int(p["name"].split("+")[0].split("-")[0].split(".")[1].removesuffix("gb")) for p in model["profiles"]
        )
        total *= 1024
    return int(total)


def _profile_memory(model: Model, profile: Model, units: int, size: int) -> int:
    known = profile["memory_mib"]
    if known is not None:
        return int(known)
    return math.floor(memory_mib_of(model) * size / units * 0.98 / 128) * 128


def _profile_multiprocessors(model: Model, profile: Model) -> int:
    known = profile["sm"]
    if known is not None:
        return int(known)
    total = int(model["sm_usable_in_mig"] or model["sm_total"] or _family(model)["sm_in_mig_assumed"])
    slices, whole = int(profile["slice_count"]), int(model["compute_slices"])
    return total if slices == whole else total * slices // whole // 2 * 2


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _text(value: str) -> str:
    return json.dumps(value)


def _compute_profile(profile: Model, ci: Model, multiprocessors: int) -> str:
    known = ci["sm"]
    if known is None:
        share = multiprocessors * int(ci["slices"]) // int(profile["slice_count"])
        known = multiprocessors if ci["default"] else share // 2 * 2
    return (
        f"{{.name = {_text(ci['name'])}, .id = {ci['ci_profile_id']}, .slices = {ci['slices']}, "
        f".max_instances = {ci['max_instances']}, .multiprocessors = {known}}}"
    )


def _gi_profile(model: Model, profile: Model, units: int) -> str:
    slices = int(profile["slice_count"])
    size = profile["placement_size"] or slices
    starts = profile["placement_starts"]
    if starts is None:
        starts = list(range(0, units - size + 1, size))
    profile_id = profile["profile_id"]
    if profile_id is None:
        profile_id = ID_BY_ENUM[profile["nvml_enum_value"]]
    multiprocessors = _profile_multiprocessors(model, profile)
    attributes = profile["attributes"]
    offered = [*profile["ci_profiles"], *profile.get("unlisted_ci_profiles", ())]
    cis = ", ".join(_compute_profile(profile, ci, multiprocessors) for ci in offered)
    fields = {
        "name": _text(profile["name"]),
        "enum_value": profile["nvml_enum_value"],
        "id": profile_id,
        "slices": slices,
        "memory_mib": _profile_memory(model, profile, units, size),
        "multiprocessors": multiprocessors,
        "copy_engines": profile["copy_engines"],
        "decoders": profile["decoders"],
        "encoders": profile["encoders"],
        "jpegs": profile["jpeg"],
        "ofas": profile["ofa"],
        "max_instances": profile["max_instances"],
        "size": size,
        "start_count": len(starts),
        "starts": "{" + ", ".join(str(start) for start in starts) + "}",
        "media": _flag("+me" in attributes),
        "all_media": _flag("+me.all" in attributes),
        "no_media": _flag("-me" in attributes),
        "graphics": _flag("+gfx" in attributes),
        "unverified": _flag(bool(profile["unverified"])),
        "ci_count": len(offered),
        "cis": "{" + cis + "}",
    }
    return _initialiser(fields)


def _slots(units: int) -> str:
    def orientation(slots: Mapping[int, tuple[int, int]]) -> str:
        return "{" + ", ".join(f"[{gi}] = {{{start}, {size}}}" for gi, (start, size) in slots.items()) + "}"

    return "{" + ", ".join(orientation(slots) for slots in GI_SLOTS[units]) + "}"


def _pci_ids(model: Model) -> str:
    rows = zip(model["pci_device_ids"], model["pci_subsystem_ids"], model["pci_classes"], strict=True)
    return "{" + ", ".join(f"{{{device}, {subsystem or NVIDIA}, {code}}}" for device, subsystem, code in rows) + "}"


def _initialiser(fields: Mapping[str, object]) -> str:
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def _board(model: Model, profiles_symbol: str | None) -> str:
    electrical = ELECTRICAL[model["key"]]
    major, minor = str(model["compute_capability"]).split(".")
    memory = memory_mib_of(model)
    reserved = model["memory_reserved_mib"]
    brand = BRAND_NVIDIA_RTX if model["key"].startswith("RTX") else BRAND_NVIDIA
    fields: dict[str, object] = {
        "key": _text(model["key"]),
        "name": _text(product_names(model)[0]),
        "pci_count": len(model["pci_device_ids"]),
        "pci": _pci_ids(model),
        "family": f"&family_table[{families().index(_family(model))}]",
        "cc_major": major,
        "cc_minor": minor,
        "brand": brand,
        "memory_mib": memory,
        "reserved_mib": int(memory * RESERVED_SHARE) if reserved is None else reserved,
        "multiprocessors": model["sm_total"] or 132,
        "cores_per_multiprocessor": model.get("cores_per_multiprocessor", _family(model)["cores_per_multiprocessor"]),
        "power_limit_mw": electrical.watts * 1000,
        "sm_clock_mhz": electrical.sm_mhz,
        "memory_clock_mhz": electrical.memory_mhz,
        "memory_bus_bits": electrical.bus_bits,
        "nvlinks": electrical.nvlinks,
        "pcie_generation": electrical.pcie_generation,
        "ecc": "true",
        "coherent": _flag(model.get("coherent_memory", False)),
        "unverified": _flag(bool(model.get("unverified"))),
    }
    if profiles_symbol is not None:
        units = _units(model)
        fields |= {
            "compute_slices": model["compute_slices"],
            "placement_units": units,
            "max_mig_devices": model["max_mig_devices"],
            "gi_count": len(model["profiles"]),
            "gis": profiles_symbol,
            "slots": _slots(units),
        }
    return _initialiser(fields)


def _family(model: Model) -> Model:
    return next(family for family in families() if family["name"] == model["arch"])


def _family_row(family: Model) -> str:
    seconds = family["slice_seconds"]
    fields: dict[str, object] = {
        "name": _text(family["full_name"]),
        "architecture": family["nvml_architecture"] or 0,
        **{
            rule: _flag(family[rule] or False)
            for rule in ("row_remapping", "mode_change_needs_reset", "mode_survives_boot", "queries_need_mode")
        },
    }
    if seconds is not None:
        fields |= {
            f"{what}_seconds": "{" + ", ".join(map(str, (0, *seconds[what]))) + "}" for what in ("create", "destroy")
        }
    return _initialiser(fields)


def _units(model: Model) -> int:
    return int(model["placement_units"] or model["compute_slices"])


def c_source(models: Iterable[Model]) -> str:
    """The text of boards_table.c."""
    lines = ['#include "boards.h"', "", "const struct family family_table[] = {"]
    lines += [f"    {_family_row(family)}," for family in families()]
    lines += ["};", "", "const unsigned int family_table_size = sizeof family_table / sizeof family_table[0];", ""]
    boards = []
    for index, model in enumerate(models):
        symbol = None
        if model.get("profiles"):
            symbol = f"profiles_{index}"
            lines.append(f"static const struct gi_profile {symbol}[] = {{")
            lines += [f"    {_gi_profile(model, profile, _units(model))}," for profile in model["profiles"]]
            lines += ["};", ""]
        boards.append(_board(model, symbol))
    lines.append("const struct board board_table[] = {")
    lines += [f"    {board}," for board in boards]
    lines += ["};", "", "const unsigned int board_table_size = sizeof board_table / sizeof board_table[0];", ""]
    return "\n".join(lines)
