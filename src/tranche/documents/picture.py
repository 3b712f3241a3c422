"""The picture of a machine's GPUs as an SVG file: for tickets, reports and pages. It needs no fonts, scripts or other files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tranche.core.quantity import format_memory
from tranche.documents.bar import HEIGHT, bar, fitted, swatch, text_width
from tranche.documents.blocks import Document, GpuBlocks, Look, blocks_of
from tranche.documents.markup import Element, element
from tranche.documents.picture_style import PATTERNS, STYLE

WIDTH, MARGIN, LABELS, GAP = 880, 20, 178, 12
TITLE, LEGEND = 58, 34
BAR = WIDTH - 2 * MARGIN - LABELS
"""Pixels: of the picture, around it, of the names at the left, between bars, above and below them, of a bar."""
_NO_SLICES = frozenset({Look.FREE, Look.LOST})


def draw_picture(gpus: Sequence[Document], allocations: Sequence[Document] = (), caption: str = "") -> str:
    """The GPUs of a GpuList document as an SVG document, with a text alternative.

    `allocations` are those of an AllocationList; with them the picture names who holds what. `caption` says where and when
    that was.
    """
    found = blocks_of(gpus, allocations)
    height = TITLE + len(found) * (HEIGHT + GAP) + LEGEND
    title = headline(found)
    svg = element(
        "svg",
        element("title", title, id="t"),
        element("desc", "\n".join(each.told for each in found) or "No GPU.", id="d"),
        element("style", STYLE),
        PATTERNS,
        element("rect", class_="tr-card", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=10),
        element("text", title, class_="tr-text tr-strong", x=MARGIN, y=28),
        element("text", fitted(caption, WIDTH - 2 * MARGIN), class_="tr-muted tr-small", x=MARGIN, y=46),
        [_row(gpu, TITLE + place * (HEIGHT + GAP)) for place, gpu in enumerate(found)],
        _legend(found, height - 22),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby="t d",
    )
    return f"{svg}\n"


def headline(gpus: Sequence[GpuBlocks]) -> str:
    """How many GPUs there are, and what is on them: `8 GPUs: 12 held, 3 idle`."""
    counts = Counter(each.look for gpu in gpus for each in gpu.blocks if each.look not in _NO_SLICES)
    free = sum(all(each.look is Look.FREE for each in gpu.blocks) for gpu in gpus)
    lost = sum(any(each.look is Look.LOST for each in gpu.blocks) for gpu in gpus)
    said = [f"{counts[look]} {look}" for look in Look if counts[look]]
    said += [
        f"{count} GPU{'s' if count > 1 else ''} {word}" for count, word in ((free, "free"), (lost, "lost")) if count
    ]
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}{': ' if said else ''}{', '.join(said)}"


def _row(gpu: GpuBlocks, y: float) -> Element:
    room = LABELS - 12
    head = f"{gpu.label}, {format_memory(gpu.memory)}" if gpu.memory else gpu.label
    return element(
        "g",
        element("text", fitted(head, room), class_="tr-text tr-strong", x=MARGIN, y=y + 18),
        element("text", fitted(gpu.model, room), class_="tr-muted tr-small", x=MARGIN, y=y + 34),
        element("svg", bar(gpu, BAR), x=MARGIN + LABELS, y=y, width=BAR, height=HEIGHT),
    )


def _legend(gpus: Sequence[GpuBlocks], y: float) -> Iterator[Element]:
    """What the blocks of this picture mean; kinds that it has none of are left out."""
    x = float(MARGIN)
    for look, word in legend(gpus):
        yield swatch(look, x, y - 11)
        yield element("text", word, class_="tr-muted tr-small", x=x + 28, y=y)
        x += 28 + text_width(word) + 12


def legend(gpus: Sequence[GpuBlocks]) -> list[tuple[Look | str, str]]:
    """The looks of the blocks and the classes of edges that are there, each with its words."""
    blocks = [each for gpu in gpus for each in gpu.blocks]
    present = {each.look for each in blocks}
    found: list[tuple[Look | str, str]] = [(look, str(look)) for look in Look if look in present]
    if any(each.foreign for each in blocks):
        found.append(("tr-foreign", "not made by Tranche"))
    if any(gpu.changing for gpu in gpus):
        found.append(("tr-changing", "being changed"))
    return found
