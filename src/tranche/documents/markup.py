"""SVG and HTML elements. All text is escaped; there is no way to insert raw markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from xml.sax.saxutils import escape

Child: TypeAlias = "Element | str"
Value: TypeAlias = str | int | float | bool | None

# HTML elements with neither content nor end tag, and SVG's shapes: all are written `<x/>`, which both languages read.
_WITHOUT_CONTENT = frozenset({"br", "circle", "hr", "input", "line", "link", "meta", "path", "rect"})
_QUOTES = {'"': "&quot;", "'": "&#39;"}


@dataclass(frozen=True, slots=True)
class Element:
    """One element; attributes and children are in writing order."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Child, ...]

    def __str__(self) -> str:
        return "".join(_written(self))

    def with_attributes(self, **attributes: Value) -> Element:
        """A copy with more attributes."""
        return Element(self.name, (*self.attributes, *_attributes(attributes)), self.children)

    def kept(self) -> KeptElement:
        """The element as fixed text, for elements that are shown again and again."""
        return KeptElement(self.name, (), (), str(self))


@dataclass(frozen=True, slots=True)
class KeptElement(Element):
    """An element with its text already written."""

    text: str


def element(name: str, /, *children: Child | Iterable[Child] | None, **attributes: Value) -> Element:
    """An element with those children; flattens lists, omits None.

    `class_` and `aria_label` stand for the attributes `class` and `aria-label`. Omits attributes that are None or False; writes
    True without a value, as HTML does.
    """
    return Element(name, _attributes(attributes), tuple(_flat(children)))


def printable(text: str) -> str:
    """The text with a space for control characters and direction marks, which neither readers nor XML can take."""
    return text if text.isprintable() else "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def _attributes(given: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    found = ((key.rstrip("_").replace("_", "-"), value) for key, value in given.items())
    return tuple((key, _text_of(value)) for key, value in found if value is not None and value is not False)


def _text_of(value: str | int | float) -> str:
    if value is True:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _flat(children: Iterable[Child | Iterable[Child] | None]) -> Iterator[Child]:
    for each in children:
        if isinstance(each, Element | str):
            yield each
        elif each is not None:
            yield from each


def _written(each: Element) -> Iterator[str]:
    if isinstance(each, KeptElement):
        yield each.text
        return
    attributes = "".join(f' {key}="{escape(printable(value), _QUOTES)}"' for key, value in each.attributes)
    if each.name in _WITHOUT_CONTENT:
        yield f"<{each.name}{attributes}/>"
        return
    yield f"<{each.name}{attributes}>"
    for child in each.children:
        if isinstance(child, str):
            yield escape(printable(child))
        else:
            yield from _written(child)
    yield f"</{each.name}>"
