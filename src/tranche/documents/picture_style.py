"""The style of GPU pictures: each kind of block has a pattern besides its colour, in light and in dark.

The colours are distinguishable with every kind of colour blindness. Texts have a contrast of at least 4.5 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from tranche.documents.blocks import BlockStatus
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
_FILLS = {
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


def fills(*, dark: bool) -> Mapping[str, str]:
    """The fill of each class."""
    return {name: pair[dark] for name, pair in _FILLS.items()}


def _colours(dark: bool) -> str:
    filled = "".join(f".{name}{{fill:{pair[dark]}}}" for name, pair in _FILLS.items())
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
