"""What is held but unused, larger than what is in it, or cut but not held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tranche.core.quantity import GIB
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.history_view import StateHistory
from tranche.dashboard.parts import TableOrder, figures, maker, memory, notes, share_and_user
from tranche.documents.blocks import BlockStatus, Document
from tranche.documents.markup import Child, element


def waste_page(
    waste: Document, overview: Document, said: Sequence[str], since: StateHistory, order: TableOrder
) -> DashboardPage:
    """A Waste document: waste now, and who held what and each GPU's use over some hours."""
    known = since.known
    gpus = {each["index"]: each for each in overview["gpus"]}
    unused = [
        (
            *_held_by(each, known),
            since.said(gpus[each["gpuIndex"]], BlockStatus.HELD, each["placement"], each["allocationIds"]),
        )
        for each in waste["unused"]
    ]
    too_large = [
        (
            *_held_by(each, known),
            memory(each["memoryUsedBytes"]),
            f"{each['enough']['profile']}, {memory(each['enough']['memoryBytes'])}",
        )
        for each in waste["tooLarge"]
    ]
    idle = [
        (
            _place(each),
            memory(each["memoryBytes"]),
            maker(each["owned"]),
            since.said(gpus[each["gpuIndex"]], BlockStatus.IDLE, each["placement"], ()),
        )
        for each in waste["idle"]
    ]
    over_time = [
        (
            f"GPU {each['gpuIndex']}",
            f"{each['held']:.0%}",
            f"{each['idle']:.0%}",
            f"{1 - each['held'] - each['idle']:.0%}",
        )
        for each in waste["gpus"]
    ]
    live = element(
        "div",
        notes(said),
        figures([(word, memory(_sum(waste[kind]))) for word, kind in _WORDS]),
        order.table(
            "unused",
            "Held, but without a running process",
            ("What", "Memory", "Held by", "User", "For"),
            unused,
            "All held devices are in use.",
        ),
        order.table(
            "too-large",
            "Held, but larger than its processes need",
            ("What", "Memory", "Held by", "User", "Used now", "Enough"),
            too_large,
            "As far as Tranche can measure, no slice is larger than its processes need.",
        ),
        order.table(
            "idle",
            "Idle slices",
            ("What", "Memory", "Made by", "For"),
            idle,
            "Every slice is held or in use.",
        ),
        element("h2", f"The last {waste['hours']} hours"),
        order.table(
            "owners",
            "By user and namespace, largest first",
            ("Owner", "Shares", "Held", "Unused now", "More than needed now"),
            [_owned(each) for each in waste["owners"]],
            "Nothing was held.",
        ),
        order.table(
            "use",
            "Fractions of each GPU over time",
            ("GPU", "Held, at least in part", "Partitioned by Tranche, but not held", "Neither"),
            over_time,
            "No GPU.",
        ),
        element(
            "p",
            "A program may have used more memory a moment ago. The page shows only whether a program runs in a share now; "
            "the events show how long the share was held.",
            class_="muted",
        ),
    )
    return DashboardPage("Waste", live)


_WORDS = (("held and unused", "unused"), ("held and larger than needed", "tooLarge"), ("idle slices", "idle"))


def _owned(each: Document) -> Sequence[Child | None]:
    owner = each["owner"]
    whose = "not known" if owner is None else f"{owner['kind']} {owner['name']}"
    hours = f"{each['heldByteSeconds'] / GIB / 3600:,.1f} GiB·h"
    return whose, str(each["shares"]), hours, memory(each["unusedBytes"]), memory(each["spareBytes"])


def _sum(found: Sequence[Document]) -> int:
    return sum((each["memoryBytes"] or 0) - each.get("enough", {}).get("memoryBytes", 0) for each in found)


def _place(each: Document) -> str:
    if each["placement"] is None:
        return f"GPU {each['gpuIndex']}"
    return f"{each['profile']} at {each['placement']['start']}:{each['placement']['size']} of GPU {each['gpuIndex']}"


def _held_by(each: Document, known: Mapping[str, Document]) -> tuple[Child | None, ...]:
    return _place(each), memory(each["memoryBytes"]), *share_and_user(each["allocationIds"], known)
