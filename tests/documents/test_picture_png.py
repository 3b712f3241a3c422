"""The picture of a machine's GPUs as PNG: what the SVG shows, at the same places in the same colours. Fonts may differ."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from PIL import Image

from tests.documents.test_markup import HOSTILE
from tests.documents.test_picture import documents_of, every_kind
from tests.strategies import sharing_views
from tranche.core.allocation import NodeView
from tranche.documents.bar import HEIGHT
from tranche.documents.blocks import BarBlock, Look, blocks_of
from tranche.documents.picture import BAR, GAP, LABELS, LEGEND, MARGIN, TITLE, WIDTH, headline
from tranche.documents.picture_png import draw_png, segments
from tranche.documents.picture_style import CLASSES, drawn_pattern, fills, strokes

SCALE = 2
Pixel = tuple[int, int, int]


def drawn(view: NodeView, caption: str = "somewhere, now") -> Image.Image:
    image = Image.open(io.BytesIO(draw_png(*documents_of(view), caption)))
    image.load()
    return image


def colour(text: str) -> Pixel:
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def inside(image: Image.Image, row: int, each: BarBlock, units: int) -> set[Pixel]:
    """The colours of a block above and below its texts, without its edge."""
    left, width = MARGIN + LABELS + BAR * each.start / units, BAR * each.size / units
    top = TITLE + row * (HEIGHT + GAP)
    found: set[Pixel] = set()
    for begin, end in ((top + 3, top + 6), (top + HEIGHT - 7, top + HEIGHT - 4)):
        box = (round(SCALE * (left + 4)), SCALE * begin, round(SCALE * (left + width - 4)), SCALE * end)
        found |= set(image.crop(box).get_flattened_data())  # type: ignore[arg-type]
    return found


def test_each_kind_of_use_has_its_colour_and_its_pattern() -> None:
    image = drawn(every_kind())
    filled, edges = fills(dark=False), strokes(dark=False)
    seen = set()
    for row, gpu in enumerate(blocks_of(*documents_of(every_kind()))):
        for each in gpu.blocks:
            found = inside(image, row, each, gpu.units)
            assert colour(filled[CLASSES[each.look]]) in found, each
            pattern = drawn_pattern(each.look)
            assert (len(found) > 1) == (pattern is not None), each
            if pattern is not None:
                marked = dict(pattern.attributes)["class"]
                mark = colour(edges.get(marked) or filled[marked])
                near = min(sum(abs(a - b) for a, b in zip(mark, pixel, strict=True)) for pixel in found)
                assert near < 150, each
            seen.add(each.look)
    assert seen == set(Look)


@settings(max_examples=20)
@given(sharing_views(max_gpus=3))
def test_it_is_as_large_as_its_gpus_and_says_in_words_what_it_shows(view: NodeView) -> None:
    image = drawn(view)
    gpus = blocks_of(*documents_of(view))
    assert image.format == "PNG"
    assert image.size == (SCALE * WIDTH, SCALE * (TITLE + len(gpus) * (HEIGHT + GAP) + LEGEND))
    said = image.info["Description"]
    assert headline(gpus) in said
    assert all(gpu.label in said for gpu in gpus)


def test_texts_are_there() -> None:
    """In the colour of texts, where the SVG has them: the title, and each GPU's name."""
    image, dark = drawn(every_kind()), colour(fills(dark=False)["tr-text"])
    for top in (12, *(TITLE + row * (HEIGHT + GAP) + 4 for row in range(7))):
        piece = image.crop((SCALE * MARGIN, SCALE * top, SCALE * (MARGIN + 60), SCALE * (top + 20)))
        assert dark in piece.get_flattened_data()


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_can_be_drawn(text: str) -> None:
    assert drawn(every_kind(), text).size[0] == SCALE * WIDTH


def test_the_lines_of_a_path() -> None:
    assert list(segments("M-2 2l4-4M1 0v8h-1")) == [((-2, 2), (2, -2)), ((1, 0), (1, 8)), ((1, 8), (0, 8))]
