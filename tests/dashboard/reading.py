"""Reads a page as a program does: HTML that the dashboard writes is XML as well, so that nothing in it can be misread."""

from __future__ import annotations

from xml.etree import ElementTree


def parsed(html: str) -> ElementTree.Element:
    """The page, or its live part, as a tree."""
    return ElementTree.fromstring(html.removeprefix("<!doctype html>\n"))


def text_of(each: ElementTree.Element) -> str:
    """All text inside."""
    return "".join(each.itertext())


def tables(page: ElementTree.Element) -> dict[str, list[list[str]]]:
    """The cells of every table's body, by the table's caption."""
    found = {}
    for table in page.iter("table"):
        caption, body = table.find("caption"), table.find("tbody")
        assert caption is not None
        assert body is not None
        found[text_of(caption)] = [[text_of(cell) for cell in row] for row in body]
    return found


def figures(page: ElementTree.Element) -> dict[str, str]:
    """The numbers of a page, by their words."""
    words = [text_of(each) for each in page.iter("dt")]
    return dict(zip(words, [text_of(each) for each in page.iter("dd")], strict=True))


def shape(page: ElementTree.Element) -> list[tuple[str, tuple[str, ...]]]:
    """Elements and the names of their attributes: what no text can change."""
    return [(each.tag, tuple(sorted(each.attrib))) for each in page.iter()]
