"""Which events somebody looks for, and in which order: the form of a page of events, and what its address asks for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tranche.documents.markup import Element, element


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Events of that `kind` in which that text is said, "" for all; newest first, or the `oldest`."""

    kind: str = ""
    text: str = ""
    oldest: bool = False

    @classmethod
    def asked(cls, query: Mapping[str, str]) -> EventFilter:
        """What the address asks for."""
        return cls(query.get("kind", ""), query.get("q", ""), query.get("order", "") == "oldest")

    @property
    def leaves_out(self) -> bool:
        """Whether it is not everything."""
        return bool(self.kind or self.text)

    @property
    def caption(self) -> str:
        """Of the table."""
        return "Events, oldest first" if self.oldest else "Events, newest first"

    def takes(self, kind: str, said: str) -> bool:
        """Whether an event of that kind, of which that is said, is one of those."""
        return (not self.kind or self.kind == kind) and self.text.casefold() in said.casefold()

    def said(self, found: int, of: int) -> str:
        """How many are."""
        return f"{found:,} of {of:,} events are such."

    def form(self, kinds: Collection[str]) -> Element:
        """Asks for others."""
        offered = {"": "every"} | {each: each for each in sorted({*kinds, self.kind} - {""})}
        orders = {"": "newest first", "oldest": "oldest first"}
        return element(
            "form",
            element("label", "Find", element("input", type="search", name="q", value=self.text, id="q")),
            _select("kind", "What", offered, self.kind),
            _select("order", "Order", orders, "oldest" if self.oldest else ""),
            element("button", "Show"),
            action="/events",
            method="get",
            role="search",
            class_="ask",
        )


def _select(name: str, word: str, offered: Mapping[str, str], chosen: str) -> Element:
    options = [element("option", said, value=value, selected=value == chosen) for value, said in offered.items()]
    return element("label", word, element("select", options, name=name, id=name))
