"""What somebody has to look after, each with a way to where it is shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tranche.dashboard.parts import span_since
from tranche.documents.markup import Element, element


@dataclass(frozen=True, slots=True)
class DashboardFinding:
    """What it is, where it is shown, and since when it is so: RFC 3339, "" where nobody knows."""

    said: str
    address: str
    since: str = ""


def needs_line(needs: Sequence[DashboardFinding], now: float, none: str = "Nothing needs you.") -> Element:
    """What is shown before everything else; `none` is said where that is nothing."""
    if not needs:
        return element("p", none, class_="needs-none")
    rows = [
        element(
            "li",
            element("a", each.said, href=each.address),
            [" for ", span_since(each.since, now)] if each.since else None,
        )
        for each in needs
    ]
    return element(
        "section", element("h2", "Needs you", id="needs"), element("ul", rows), class_="needs", aria_labelledby="needs"
    )
