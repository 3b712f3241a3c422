"""The picture of a machine's GPUs as an SVG file, for tickets, reports and pages. It needs no fonts, scripts or other files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tranche.core.quantity import format_memory
from tranche.documents.bar import HEIGHT, bar, fitted, swatch, text_width
from tranche.documents.blocks import BlockKind, BlockRow, BlockStatus, Document, blocks_of
from tranche.documents.markup import Element, element
from tranche.documents.picture_style import PATTERNS, STYLE

WIDTH, MARGIN, LABELS, GAP = 880, 20, 178, 12
TITLE, LEGEND = 58, 34
BAR = WIDTH - 2 * MARGIN - LABELS
"""Pixels: of the picture, around it, of the names at the left, between bars, above and below the bars, of a bar."""
_HEADLINE = 0.88 * (WIDTH - 2 * MARGIN)
"""Room for bold text, which is wider."""


def draw_picture(gpus: Sequence[Document], allocations: Sequence[Document] = (), caption: str = "") -> str:
    """The GPUs of a GpuList document as an SVG document, with a text alternative.

    `allocations`, from an AllocationList, let the picture name holders. `caption` gives its place and time.
    """
    found = blocks_of(gpus, allocations)
    height = picture_height(found)
    title = headline(found)
    svg = element(
        "svg",
        element("title", title, id="t"),
        element("desc", "\n".join(each.told for each in found) or "No GPU.", id="d"),
        element("style", STYLE),
        PATTERNS,
        element("rect", class_="tr-card", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=10),
        element("text", fitted(title, _HEADLINE), class_="tr-text tr-strong", x=MARGIN, y=28),
        element("text", fitted(caption, WIDTH - 2 * MARGIN), class_="tr-muted tr-small", x=MARGIN, y=46),
        [_row(gpu, TITLE + place * (HEIGHT + GAP)) for place, gpu in enumerate(found)],
        _legend(found),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby="t d",
    )
    return f"{svg}\n"


def headline(gpus: Sequence[BlockRow]) -> str:
    """Counts of GPUs and slices by state: `8 GPUs: 1 lost, 2 held whole; 12 slices: 9 held, 3 idle`."""
    pieces = Counter((each.piece, each.look) for gpu in gpus for each in gpu.blocks)
    looks = [{each.look for each in gpu.blocks} for gpu in gpus]
    wholes = [
        *(
            (sum(look in each for each in looks), str(look))
            for look in (BlockStatus.LOST, BlockStatus.FAULTY, BlockStatus.CORDONED)
        ),
        (pieces[BlockKind.GPU, BlockStatus.HELD], "held whole"),
        (pieces[BlockKind.GPU, BlockStatus.IN_USE], str(BlockStatus.IN_USE)),
        (sum(each == {BlockStatus.FREE} for each in looks), str(BlockStatus.FREE)),
    ]
    slices = [(pieces[BlockKind.SLICE, look], str(look)) for look in BlockStatus]
    parts = [(sum(count for (piece, _), count in pieces.items() if piece is BlockKind.PART), "held")]
    said = [_counted(len(gpus), "GPU", wholes)]
    for noun, counts in (("slice", slices), ("part", parts)):
        if total := sum(count for count, _ in counts):
            said.append(_counted(total, noun, counts))
    return "; ".join(said)


def _counted(total: int, noun: str, counts: Sequence[tuple[int, str]]) -> str:
    """`12 slices: 9 held, 3 idle`; `12 slices held` if all are."""
    named = f"{total} {noun}{'' if total == 1 else 's'}"
    there = [(count, word) for count, word in counts if count]
    if len(there) == 1 and there[0][0] == total:
        return f"{named} {there[0][1]}"
    return f"{named}{': ' if there else ''}{', '.join(f'{count} {word}' for count, word in there)}"


def _row(gpu: BlockRow, y: float) -> Element:
    room = LABELS - 12
    head = f"{gpu.label}, {format_memory(gpu.memory)}" if gpu.memory else gpu.label
    return element(
        "g",
        element("text", fitted(head, room), class_="tr-text tr-strong", x=MARGIN, y=y + 18),
        element("text", fitted(gpu.model, room), class_="tr-muted tr-small", x=MARGIN, y=y + 34),
        element("svg", bar(gpu, BAR), x=MARGIN + LABELS, y=y, width=BAR, height=HEIGHT),
    )


def picture_height(gpus: Sequence[BlockRow]) -> int:
    """The height of the picture of these GPUs, in pixels."""
    below = max((round(y) + 22 for _, _, _, y in legend_places(gpus)), default=0)
    return max(_rows_end(gpus) + LEGEND, below)


def legend_places(gpus: Sequence[BlockRow]) -> Iterator[tuple[BlockStatus | str, str, float, float]]:
    """The entries of the legend, each with the position of its box and the base line of its word."""
    x, y = float(MARGIN), float(_rows_end(gpus) + LEGEND - 22)
    for look, word in legend(gpus):
        width = 28 + text_width(word)
        if x + width > WIDTH - MARGIN:
            x, y = float(MARGIN), y + 20
        yield look, word, x, y
        x += width + 12


def _rows_end(gpus: Sequence[BlockRow]) -> int:
    return TITLE + len(gpus) * (HEIGHT + GAP)


def _legend(gpus: Sequence[BlockRow]) -> Iterator[Element]:
    """The legend; omits kinds of blocks that the picture lacks."""
    for look, word, x, y in legend_places(gpus):
        yield swatch(look, x, y - 11)
        yield element("text", word, class_="tr-muted tr-small", x=x + 28, y=y)


def legend(gpus: Sequence[BlockRow]) -> list[tuple[BlockStatus | str, str]]:
    """The block looks and edge classes in the picture, each with its words."""
    blocks = [each for gpu in gpus for each in gpu.blocks]
    present = {each.look for each in blocks}
    found: list[tuple[BlockStatus | str, str]] = [(look, str(look)) for look in BlockStatus if look in present]
    if any(each.foreign for each in blocks):
        found.append(("tr-foreign", "not made by Tranche"))
    if any(gpu.changing for gpu in gpus):
        found.append(("tr-changing", "being changed"))
    return found
