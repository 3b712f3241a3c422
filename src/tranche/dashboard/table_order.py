"""The order of a page's tables, set by its address: `?sort=slices.memory`, or `?sort=-slices.memory` for the reverse. Pure.

Each column head is a link, so sorting works without a script, and the page's live part keeps the order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from tranche.dashboard.parts import table
from tranche.documents.markup import Child, Element, element

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ([GM])iB", re.ASCII)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class TableOrder:
    """What an address asks for: `path` with that `query`."""

    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    def asks_for(self, id: str) -> bool:
        """Whether the address sorts that table."""
        return self._sort.lstrip("-").startswith(f"{id}.")

    def table(
        self, id: str, name: str, columns: Sequence[str], rows: Sequence[Sequence[Child | None]], empty: str
    ) -> Element:
        """The table in the requested order, else in that of its rows; empty cells always come last."""
        for place, each in enumerate(columns):
            if self.is_by(id, each):
                said = sorted((row for row in rows if row[place]), key=lambda row: _key(row[place]), reverse=self.down)
                rows = [*said, *(row for row in rows if not row[place])]
                break
        return table(name, columns, rows, empty, self.heads(id, columns), id)

    def heads(self, id: str, columns: Sequence[str]) -> list[Element]:
        """The column heads, each with a link that sorts by it or reverses the order."""
        return [self._head(id, each, self.is_by(id, each), self.down) for each in columns]

    def is_by(self, id: str, column: str) -> bool:
        """Whether the address sorts that table by that column."""
        return self._sort.lstrip("-") == f"{id}.{_word(column)}"

    @property
    def down(self) -> bool:
        """Whether the largest comes first."""
        return self._sort.startswith("-")

    @property
    def _sort(self) -> str:
        return self.query.get("sort", "")

    def _head(self, id: str, column: str, sorted_by: bool, down: bool) -> Element:
        asked = f"{'-' if sorted_by and not down else ''}{id}.{_word(column)}"
        mark = (" ▼" if down else " ▲") if sorted_by else ""
        link = element(
            "a",
            column,
            element("span", mark, aria_hidden="true") if mark else None,
            href=f"{self.path}?{urlencode({**self.query, 'sort': asked}, errors='replace')}#{id}",
            id=f"sort-{id}.{_word(column)}",
        )
        return element(
            "th", link, scope="col", aria_sort=("descending" if down else "ascending") if sorted_by else None
        )


def _word(column: str) -> str:
    return re.sub(r"\W+", "-", column.casefold())


def _key(cell: Child | None) -> list[tuple[int, float, str]]:
    """Sorts moments by time, amounts of memory by size, other texts with the numbers in them as numbers."""
    text = "".join(_texts(cell)).replace(",", "")
    if (amount := _AMOUNT.fullmatch(text)) is not None:
        return [(0, float(amount[1]) * (1024 if amount[2] == "G" else 1), "")]
    if isinstance(cell, Element) and (when := dict(cell.attributes).get("datetime")):
        return [(0, 0.0, when)]
    pieces = _NUMBER.split(text.casefold())
    return [(0, float(each), "") if place % 2 else (1, 0.0, each) for place, each in enumerate(pieces) if each]


def _texts(cell: Child | None) -> Iterator[str]:
    if isinstance(cell, Element):
        for each in cell.children:
            yield from _texts(each)
    elif cell:
        yield cell
