"""The first view: every GPU with its slices in order of placement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.history_view import StateHistory
from tranche.dashboard.parts import TableOrder, figures, gpu_link, maker, measured, memory, notes, share_and_user
from tranche.documents.blocks import BarBlock, BlockKind, BlockRow, BlockStatus, Document, blocks_of
from tranche.documents.markup import Child, Element, element
from tranche.documents.picture import HEIGHT, bar, headline, legend, swatch

BAR_PIXELS = 700
"""The width that a bar's texts are cut for; a narrower screen clips them."""


def fleet_page(
    overview: Document,
    said: Sequence[str],
    now: float,
    order: TableOrder,
    needs: Element | None = None,
    events: Sequence[Document] = (),
    readings: Sequence[Document] = (),
) -> DashboardPage:
    """The GPUs of the overview, or those whose words have the searched text; `needs` come first.

    `events` are all that are kept; they tell how long each state has lasted. `readings` tell how much each GPU is used.
    """
    looked_for = order.query.get("q", "")
    every = blocks_of(overview["gpus"], overview["allocations"])
    found = [gpu for gpu in every if looked_for.casefold() in f"{gpu.uuid} {gpu.told}".casefold()]
    use = {each["gpuUUID"]: each for each in readings}
    live = element(
        "div",
        needs,
        notes(said),
        fleet_figures(overview),
        element("p", headline(every) if not looked_for else f"{len(found)} of {len(every)} GPUs match “{looked_for}”."),
        key(found),
        element("div", [gpu_row(gpu, used_in_words(use.get(gpu.uuid))) for gpu in found], class_="gpus"),
        _as_table(overview["gpus"], found, StateHistory(overview, events, now), use, order),
    )
    return DashboardPage("Fleet", live, _filter(looked_for))


def fleet_figures(overview: Document) -> Element:
    """The fleet's counts."""
    slices = [each for gpu in overview["gpus"] for each in gpu["slices"]]
    return figures(
        [
            ("GPUs", str(len(overview["gpus"]))),
            ("slices", str(len(slices))),
            ("slices held", str(sum(each["state"] == "held" for each in slices))),
            ("slices idle", str(sum(each["state"] == "idle" for each in slices))),
            ("shares", str(len(overview["allocations"]))),
            ("waiting", str(len(overview["waiters"]))),
        ]
    )


def gpu_row(gpu: BlockRow, used: str = "") -> Element:
    """A GPU's name, use and bar."""
    beside = element("span", f" {used}", class_="muted") if used else None
    return element(
        "div",
        element("p", gpu_link(gpu.uuid, gpu.label), beside, element("br"), element("span", gpu.model, class_="muted")),
        gpu_bar(gpu),
        class_="gpu",
    )


def gpu_bar(gpu: BlockRow, when: str = "", width: float = BAR_PIXELS) -> Element:
    """The bar alone, as wide as its room, with texts cut for `width`; `when` comes first in its text alternative."""
    said = f"{when}{gpu.told}"
    return element("svg", bar(gpu, width), role="img", aria_label=said, width="100%", height=HEIGHT, class_="bar")


def key(gpus: Sequence[BlockRow]) -> Element:
    """The legend of the blocks."""
    entries = [
        element("li", element("svg", swatch(look, 0, 0), width=22, height=14, aria_hidden="true"), " ", word)
        for look, word in legend(gpus)
    ]
    return element("ul", entries, class_="key", aria_label="What the blocks mean")


def _filter(looked_for: str) -> Element:
    return element(
        "form",
        element("label", "Find ", element("input", type="search", name="q", value=looked_for, id="q")),
        element("button", "Show"),
        element("a", "Save the picture", href="/picture.svg", download="gpus.svg"),
        action="/",
        method="get",
        role="search",
    )


def used_in_words(reading: Document | None) -> str:
    """How busy a GPU is, or the memory used of one that is cut: the driver does not measure how busy that is as a whole."""
    if reading is None:
        return ""
    if reading["busy"] is not None:
        return f"{measured(reading['busy'], '%')} busy"
    return "" if reading["memoryUsedBytes"] is None else f"{memory(reading['memoryUsedBytes'])} used"


def _as_table(
    gpus: Sequence[Document],
    found: Sequence[BlockRow],
    since: StateHistory,
    use: Mapping[str, Document],
    order: TableOrder,
) -> Element:
    columns = ("GPU", "What", "State", "For", "Held by", "User", "Memory", "Used", "Busy", "Made by")
    documents = {gpu["uuid"]: gpu for gpu in gpus}
    rows = [row for gpu in found for row in _rows(documents[gpu.uuid], gpu, since, use.get(gpu.uuid))]
    shown = order.table("gpus", "The same as a table", columns, rows, "No GPU.")
    return element("details", element("summary", "As a table"), shown, id="as-table", open=order.asks_for("gpus"))


def _rows(
    gpu: Document, drawn: BlockRow, since: StateHistory, reading: Document | None
) -> Iterator[Sequence[Child | None]]:
    inside = {} if reading is None else {each["gpuInstanceId"]: each for each in reading["slices"]}
    for each in drawn.blocks:
        place, device = _device_of(gpu, each)
        made = None if device is gpu else maker(device["owned"])
        amount = (
            each.name
            if each.piece is BlockKind.PART
            else ""
            if each.piece is BlockKind.ROOM
            else memory(device["memoryBytes"])
        )
        held_by, user = share_and_user(each.holders, since.known)
        long = since.said(gpu, each.look, {"start": each.start, "size": each.size}, each.holders)
        used_by = each.who if each.look is BlockStatus.IN_USE else held_by
        what = f"{each.name} {place}".strip()
        # A gauge measures a device, not a share of it or the room beside it.
        device_use = reading if device is gpu else inside.get(device["gpuInstanceId"])
        used, busy = "", ""
        if device_use is not None and each.piece not in (BlockKind.PART, BlockKind.ROOM):
            used, busy = memory(device_use["memoryUsedBytes"]), measured(device_use["busy"], "%")
        yield gpu_link_of(drawn), what, str(each.look), long, used_by, user, amount, used, busy, made


def gpu_link_of(drawn: BlockRow) -> Child:
    """A link to a GPU by its label, for a table: the picture's link already has the id."""
    return element("a", drawn.label, href=f"/gpus/{drawn.uuid}")


def _device_of(gpu: Document, each: BarBlock) -> tuple[str, Document]:
    """Where the block lies, in words, and its device's document: a slice's or the GPU's."""
    for piece in gpu["slices"]:
        start, size = piece["placement"]["start"], piece["placement"]["size"]
        if start <= each.start < start + size:
            return f"at {start}:{size}", piece
    return "", gpu
