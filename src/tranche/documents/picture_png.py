"""The same picture of a machine's GPUs as PNG, for where SVG is not taken. Pillow draws it, with the font that it has inside."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from tranche.core.quantity import format_memory
from tranche.documents.bar import HEIGHT, PADDING, fitted
from tranche.documents.blocks import BarBlock, Document, GpuBlocks, Look, blocks_of
from tranche.documents.markup import printable
from tranche.documents.picture import BAR, GAP, LABELS, MARGIN, TITLE, WIDTH, headline, legend_places, picture_height
from tranche.documents.picture_style import CLASSES, drawn_pattern, fills, strokes

_SCALE = 2
_TILE = 8
_FINER = 4
"""Patterns are drawn so much larger and made smaller, so that their lines are smooth."""

Point = tuple[float, float]
Colour = tuple[int, int, int]


def draw_png(gpus: Sequence[Document], allocations: Sequence[Document] = (), caption: str = "") -> bytes:
    """The GPUs of a GpuList document as a PNG file, twice as large as the SVG picture; its description is in its text."""
    found = blocks_of(gpus, allocations)
    canvas = _Canvas(picture_height(found))
    canvas.text(fitted(headline(found), WIDTH - 2 * MARGIN), MARGIN, 28, 13, "tr-text")
    canvas.text(fitted(caption, WIDTH - 2 * MARGIN), MARGIN, 46, 11.5, "tr-muted")
    for place, gpu in enumerate(found):
        _row(canvas, gpu, TITLE + place * (HEIGHT + GAP))
    _legend(canvas, found)
    return canvas.png("\n".join([headline(found), caption, *(each.told for each in found)]))


def _row(canvas: _Canvas, gpu: GpuBlocks, y: float) -> None:
    head = f"{gpu.label}, {format_memory(gpu.memory)}" if gpu.memory else gpu.label
    canvas.text(fitted(head, LABELS - 12), MARGIN, y + 18, 13, "tr-text")
    canvas.text(fitted(gpu.model, LABELS - 12), MARGIN, y + 34, 11.5, "tr-muted")
    for each in gpu.blocks:
        _block(canvas, each, gpu.units, y)
    if gpu.changing:
        canvas.edge(_Box(MARGIN + LABELS, y, BAR, HEIGHT), "tr-changing", 3, dash=(8, 4))


def _block(canvas: _Canvas, each: BarBlock, units: int, y: float) -> None:
    box = _Box(MARGIN + LABELS + BAR * each.start / units, y, BAR * each.size / units, HEIGHT)
    canvas.block(box, each.look, foreign=each.foreign)
    room = box.width - 2 * PADDING
    for text, size, below in ((each.name, 13.0, 18), (each.who, 11.5, 34)):
        if shown := fitted(text, room):
            plate = _Box(box.x + PADDING - 3, y + below - 12, min(room, canvas.length(shown, size)) + PADDING, 15)
            canvas.fill(plate, CLASSES[each.look])
            canvas.text(shown, box.x + PADDING, y + below, size, "tr-text")


def _legend(canvas: _Canvas, gpus: Sequence[GpuBlocks]) -> None:
    for look, word, x, y in legend_places(gpus):
        box = _Box(x, y - 11, 22, 14)
        if isinstance(look, Look):
            canvas.block(box, look)
        else:
            canvas.edge(box, look, 2, dash=(3, 3))
        canvas.text(word, x + 28, y, 11.5, "tr-muted")


@dataclass(frozen=True, slots=True)
class _Box:
    """In the picture's own pixels, as SVG has them."""

    x: float
    y: float
    width: float
    height: float

    @property
    def corners(self) -> tuple[int, int, int, int]:
        """The first and the last pixel of the file, each as x and y."""
        left, top = round(self.x * _SCALE), round(self.y * _SCALE)
        right, bottom = round((self.x + self.width) * _SCALE), round((self.y + self.height) * _SCALE)
        return left, top, max(left, right - 1), max(top, bottom - 1)


class _Canvas:
    def __init__(self, height: int) -> None:
        self.height = height
        self._fills = {name: _colour(text) for name, text in fills(dark=False).items()}
        self._strokes = {name: _colour(text) for name, text in strokes(dark=False).items()}
        self._image = Image.new("RGB", (WIDTH * _SCALE, height * _SCALE), self._fills["tr-card"])
        self._draw = ImageDraw.Draw(self._image)
        self._fonts: dict[float, ImageFont.FreeTypeFont | ImageFont.ImageFont] = {}
        self._tiles: dict[Look, Image.Image] = {}
        self.edge(_Box(0, 0, WIDTH, height), "tr-card", 1)

    def fill(self, box: _Box, kind: str) -> None:
        self._draw.rectangle(box.corners, fill=self._fills[kind])

    def block(self, box: _Box, look: Look, *, foreign: bool = False) -> None:
        """What a block of that look is filled with, and its edge."""
        left, top, right, bottom = box.corners
        self._image.paste(self._filled(look, right - left + 1, bottom - top + 1), (left, top))
        self.edge(box, "tr-box", 1)
        if foreign:
            self.edge(box, "tr-foreign", 2.5, dash=(3, 3))

    def edge(self, box: _Box, kind: str, width: float, dash: tuple[int, int] | None = None) -> None:
        left, top, right, bottom = box.corners
        if dash is None:
            self._draw.rectangle(box.corners, outline=self._strokes[kind], width=round(width * _SCALE))
            return
        thick = round(width * _SCALE) - 1
        for start, end in _dashes(left, right, dash):
            self._draw.rectangle((start, top, end, top + thick), fill=self._strokes[kind])
            self._draw.rectangle((start, bottom - thick, end, bottom), fill=self._strokes[kind])
        for start, end in _dashes(top, bottom, dash):
            self._draw.rectangle((left, start, left + thick, end), fill=self._strokes[kind])
            self._draw.rectangle((right - thick, start, right, end), fill=self._strokes[kind])

    def text(self, text: str, x: float, baseline: float, size: float, kind: str) -> None:
        where = (x * _SCALE, baseline * _SCALE)
        self._draw.text(where, printable(text), self._fills[kind], self._font(size), anchor="ls")

    def length(self, text: str, size: float) -> float:
        """How wide a text is, in the picture's own pixels."""
        return self._draw.textlength(printable(text), self._font(size)) / _SCALE

    def png(self, said: str) -> bytes:
        about = PngInfo()
        about.add_itxt("Description", printable(said))
        out = io.BytesIO()
        self._image.save(out, "PNG", optimize=True, pnginfo=about)
        return out.getvalue()

    def _font(self, size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        if size not in self._fonts:
            self._fonts[size] = ImageFont.load_default(size * _SCALE)
        return self._fonts[size]

    def _filled(self, look: Look, width: int, height: int) -> Image.Image:
        tile = self._tiles.setdefault(look, self._tile(look))
        made = Image.new("RGB", (width, height))
        for x in range(0, width, tile.width):
            for y in range(0, height, tile.height):
                made.paste(tile, (x, y))
        return made

    def _tile(self, look: Look) -> Image.Image:
        """One piece of what a block of that look is filled with: the pattern of the SVG picture over its colour."""
        scale = _SCALE * _FINER
        image = Image.new("RGB", (_TILE * scale, _TILE * scale), self._fills[CLASSES[look]])
        if (pattern := drawn_pattern(look)) is not None:
            self._pattern(ImageDraw.Draw(image), dict(pattern.attributes), scale)
        return image.resize((_TILE * _SCALE, _TILE * _SCALE), Image.Resampling.BOX)

    def _pattern(self, draw: ImageDraw.ImageDraw, shape: dict[str, str], scale: int) -> None:
        kind = shape["class"]
        if "d" in shape:
            for start, end in segments(shape["d"]):
                points = [(x * scale, y * scale) for x, y in (start, end)]
                draw.line(points, fill=self._strokes[kind], width=round(1.5 * scale))
            return
        x, y, r = (float(shape[name]) * scale for name in ("cx", "cy", "r"))
        draw.ellipse((x - r, y - r, x + r, y + r), fill=self._fills[kind])


def segments(d: str) -> Iterator[tuple[Point, Point]]:
    """The lines of a path that is made of `M`, `l`, `h` and `v` alone."""
    at: Point = (0.0, 0.0)
    for command, text in re.findall(r"([Mlhv])([^Mlhv]*)", d):
        numbers = [float(each) for each in re.findall(r"-?[\d.]+", text)]
        x, y = {"h": (numbers[0], 0.0), "v": (0.0, numbers[0])}.get(command) or (numbers[0], numbers[1])
        if command == "M":
            at = (x, y)
            continue
        before, at = at, (at[0] + x, at[1] + y)
        yield before, at


def _dashes(start: int, end: int, dash: tuple[int, int]) -> Iterable[tuple[int, int]]:
    drawn, left_out = (each * _SCALE for each in dash)
    return ((each, min(end, each + drawn - 1)) for each in range(start, end + 1, drawn + left_out))


def _colour(text: str) -> Colour:
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)
