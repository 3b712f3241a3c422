"""Elements of SVG and HTML. All text is escaped, whoever wrote it; there is no way to put in what is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from xml.sax.saxutils import escape

Child: TypeAlias = "Element | str"
Value: TypeAlias = str | int | float | bool | None

# HTML elements that have neither content nor an end, and SVG's shapes: all are written `<x/>`, which both languages read.
_WITHOUT_CONTENT = frozenset({"br", "circle", "hr", "input", "line", "link", "meta", "path", "rect"})
_QUOTES = {'"': "&quot;", "'": "&#39;"}


@dataclass(frozen=True, slots=True)
class Element:
    """One element; attributes and children in the order in which they are written."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Child, ...]

    def __str__(self) -> str:
        return "".join(_written(self))

    def with_attributes(self, **attributes: Value) -> Element:
        """The same with more attributes."""
        return Element(self.name, (*self.attributes, *_attributes(attributes)), self.children)

    def kept(self) -> KeptElement:
        """The same, written once and without its parts: for what is shown again and again as it is."""
        return KeptElement(self.name, (), (), str(self))


@dataclass(frozen=True, slots=True)
class KeptElement(Element):
    """An element that knows how it is written."""

    text: str


def element(name: str, /, *children: Child | Iterable[Child] | None, **attributes: Value) -> Element:
    """An element with those children, lists of them flattened, None left out.

    `class_` and `aria_label` are the attributes `class` and `aria-label`. One that is None or False is left out, True is written
    without a value, as HTML wants it.
    """
    return Element(name, _attributes(attributes), tuple(_flat(children)))


def printable(text: str) -> str:
    """The text with a space for what neither a reader nor XML can take: control characters, marks that turn the direction."""
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
