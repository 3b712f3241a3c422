"""The bar of one GPU as SVG elements. Positions along it are percentages, so a bar fills the available width."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from tranche.documents.blocks import BarBlock, BlockRow, BlockStatus
from tranche.documents.markup import Element, element
from tranche.documents.picture_style import CLASSES, pattern_of

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
