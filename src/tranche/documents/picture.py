"""The picture of a machine's GPUs as an SVG file, for tickets, reports and pages. It needs no fonts, scripts or other files.

Each kind of block has a pattern besides its colour, in light and in dark. The colours are distinguishable with every kind of
colour blindness. Texts have a contrast of at least 4.5 to 1.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tranche.core.quantity import format_memory
from tranche.documents.blocks import BarBlock, BlockKind, BlockRow, BlockStatus, Document, blocks_of
from tranche.documents.markup import Element, element

CLASSES = {
    BlockStatus.HELD: "tr-held",
    BlockStatus.SHARED: "tr-shared",
    BlockStatus.PREPARING: "tr-preparing",
    BlockStatus.IN_USE: "tr-used",
    BlockStatus.IDLE: "tr-idle",
    BlockStatus.FREE: "tr-free",
    BlockStatus.KEPT: "tr-kept",
    BlockStatus.UNUSABLE: "tr-unusable",
    BlockStatus.CORDONED: "tr-cordoned",
    BlockStatus.FAULTY: "tr-faulty",
    BlockStatus.MISSING: "tr-missing",
    BlockStatus.LOST: "tr-lost",
}
"""The class of a block's colour."""

# Each colour in light and in dark.
FILLS = {
    "tr-text": ("#1f2328", "#f0f6fc"),
    "tr-muted": ("#59636e", "#9198a1"),
    "tr-card": ("#ffffff", "#0d1117"),
    "tr-held": ("#b6dcfb", "#0b4a80"),
    "tr-shared": ("#b7ebdd", "#0b5c49"),
    "tr-preparing": ("#fbe7b2", "#5c4708"),
    "tr-used": ("#f4cfe4", "#6b2552"),
    "tr-idle": ("#f3f5f7", "#21262d"),
    "tr-free": ("#ffffff", "#0d1117"),
    "tr-kept": ("#e3dcf7", "#3d2f66"),
    "tr-unusable": ("#e1e5ea", "#2f353d"),
    "tr-cordoned": ("#ffe0bd", "#5a3a0f"),
    "tr-faulty": ("#ffdcd3", "#6e2a10"),
    "tr-missing": ("#ffdcd3", "#6e2a10"),
    "tr-lost": ("#ffdcd3", "#6e2a10"),
    "tr-dot": ("#a0357a", "#ee9ccd"),
}
_STROKES = {
    "tr-card": ("#d1d9e0", "#3d444d"),
    "tr-box": ("#6e7781", "#848d97"),
    "tr-mark": ("#59636e", "#9198a1"),
    "tr-warn": ("#b3430c", "#ff9b70"),
    "tr-foreign": ("#a0357a", "#ee9ccd"),
    "tr-changing": ("#9a6700", "#e3b341"),
}


def _colours(dark: bool) -> str:
    filled = "".join(f".{name}{{fill:{pair[dark]}}}" for name, pair in FILLS.items())
    return filled + "".join(f".{name}{{stroke:{pair[dark]}}}" for name, pair in _STROKES.items())


STYLE = f"""\
.tr-text,.tr-muted{{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}}
.tr-small{{font-size:11.5px}}.tr-strong{{font-weight:600}}
.tr-box{{stroke-width:2}}.tr-mark,.tr-warn{{stroke-width:1.5;fill:none}}
.tr-foreign{{stroke-width:5;stroke-dasharray:3}}.tr-changing{{stroke-width:6;stroke-dasharray:8 4;fill:none}}
{_colours(dark=False)}
@media (prefers-color-scheme:dark){{{_colours(dark=True)}}}
"""
"""The style sheet of every picture: part of a picture's file, and of a page's own styles."""

_DRAWN: Mapping[BlockStatus, Element] = {
    BlockStatus.IDLE: element("path", d="M-2 2l4-4M0 8l8-8M6 10l4-4", class_="tr-mark"),
    BlockStatus.PREPARING: element("path", d="M0 2h8M0 6h8", class_="tr-mark"),
    BlockStatus.IN_USE: element("circle", cx=2, cy=2, r=1.3, class_="tr-dot"),
    BlockStatus.KEPT: element("path", d="M2 1v4M6 4v4", class_="tr-mark"),
    BlockStatus.UNUSABLE: element("path", d="M0 4h8M4 0v8", class_="tr-mark"),
    BlockStatus.CORDONED: element("path", d="M0 6l4-4M4 2l4 4", class_="tr-warn"),
    BlockStatus.FAULTY: element("path", d="M4 1v6M1 4h6", class_="tr-warn"),
    BlockStatus.MISSING: element("path", d="M0 0l8 8M8 0l-8 8", class_="tr-warn"),
    BlockStatus.LOST: element("path", d="M0 0l8 8M8 0l-8 8", class_="tr-warn"),
    BlockStatus.SHARED: element("path", d="M1 0v8", class_="tr-mark"),
}
PATTERNS = element(
    "defs",
    [
        element("pattern", drawn, id=f"p-{CLASSES[look]}", width=8, height=8, patternUnits="userSpaceOnUse")
        for look, drawn in _DRAWN.items()
    ],
)
"""The patterns that blocks refer to; once per document."""


def pattern_of(look: BlockStatus) -> str:
    """The pattern over a block's colour."""
    return f"url(#p-{CLASSES[look]})" if look in _DRAWN else "none"


HEIGHT = 44
"""The height of a bar, in pixels."""

_NARROW = frozenset("ijlrt.,:;'|!I()[]{} ")
_LETTER, _NARROW_LETTER, _WIDE_LETTER = 7.6, 4.4, 13.0
PADDING = 6
"""Between the edge of a block and its text."""


def bar(gpu: BlockRow, width: float) -> list[Element]:
    """The blocks of a GPU, for an `svg` element of that height; shortens texts for a bar of `width` pixels."""
    drawn = [_block(each, gpu.units, width) for each in gpu.blocks]
    if gpu.changing:
        around = element("rect", width="100%", height=HEIGHT, class_="tr-changing")
        drawn.append(element("g", element("title", "being changed"), around))
    return drawn


def swatch(look: BlockStatus | str, x: float, y: float) -> Element:
    """A small legend box that looks like a block, or has an edge of that class: `tr-foreign`, `tr-changing`."""
    if isinstance(look, BlockStatus):
        shape = [*_filled(look, width="100%", height="100%", rx=3)]
    else:
        shape = [element("rect", fill="none", class_=look, width="100%", height="100%")]
    return element("svg", shape, x=x, y=y, width=22, height=14)


def _block(each: BarBlock, units: int, width: float) -> Element:
    start, size = 100 * each.start / units, 100 * each.size / units
    room = width * each.size / units - 2 * PADDING
    inside = [
        element("title", each.told),
        # Half of a line lies outside and is clipped, so that neighbours do not share one.
        *_filled(each.look, width="100%", height=HEIGHT, rx=3, foreign=each.foreign),
    ]
    # A text stands on a plate of the block's colour; otherwise patterns run through its letters.
    plate = element("rect", height=15, rx=2, class_=CLASSES[each.look])
    who = next((text for text in (each.who, *each.shorter) if text_width(text) <= room), each.who)
    for text, kind, y in ((each.name, "tr-text tr-strong", 18), (who, "tr-text tr-small", 34)):
        if shown := fitted(text, room):
            width = min(room, text_width(shown)) + PADDING
            inside.append(plate.with_attributes(x=PADDING - 3, y=y - 12, width=width))
            inside.append(element("text", shown, x=PADDING, y=y, class_=kind))
    return element("svg", inside, x=f"{start:.6g}%", width=f"{size:.6g}%", height=HEIGHT)


def _filled(look: BlockStatus, *, foreign: bool = False, **place: str | float) -> Iterator[Element]:
    yield element("rect", class_=CLASSES[look], **place)
    yield element("rect", class_="tr-box tr-foreign" if foreign else "tr-box", fill=pattern_of(look), **place)


def text_width(text: str) -> float:
    """The greatest width of a text in pixels, as the picture writes it."""
    return sum(map(_letter_width, text))


def fitted(text: str, room: float) -> str:
    """As much of the text as fits, with an ellipsis if shortened; "" if fewer than three letters fit."""
    if text_width(text) <= room:
        return text
    used, kept = _LETTER, 0
    for letter in text:
        used += _letter_width(letter)
        if used > room:
            break
        kept += 1
    return f"{text[:kept].rstrip()}…" if kept > 2 else ""


def _letter_width(letter: str) -> float:
    if letter in _NARROW:
        return _NARROW_LETTER
    return _WIDE_LETTER if unicodedata.east_asian_width(letter) in "WF" else _LETTER


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
