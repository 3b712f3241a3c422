"""Elements of SVG and HTML: whatever text goes in comes out as text."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.documents.markup import element, printable

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "]]>&amp;&lt;",
    "\x00\x08\x1b[31m",
    "\u202egpj",
    "\ud800",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    read = ElementTree.fromstring(str(element("p", element("b", text), title=text)))
    assert [each.tag for each in read.iter()] == ["p", "b"]
    assert read[0].text == printable(text)
    assert list(read.attrib) == ["title"]


@given(st.text(), st.text())
def test_any_text_is_read_again_as_it_was_but_for_what_cannot_be_shown(inside: str, attribute: str) -> None:
    xml = str(element("p", element("b", inside), element("rect"), title=attribute))
    read = ElementTree.fromstring(xml)
    assert (read[0].text or "") == printable(inside)
    # XML makes a space of a line break in an attribute.
    assert read.get("title") == printable(attribute).replace("\n", " ")

    found: list[tuple[str, list[tuple[str, str | None]]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, attrs))

    Reader().feed(xml)
    assert found == [("p", [("title", printable(attribute))]), ("b", []), ("rect", [])]


def test_attributes_are_written_as_html_wants_them() -> None:
    made = element("input", class_="a", aria_label="b", checked=True, disabled=False, name=None, value=0.25)
    assert str(made) == '<input class="a" aria-label="b" checked="" value="0.25"/>'
    assert str(element("p", ["a", element("br")], None, "b")) == "<p>a<br/>b</p>"
