"""Pieces of pages: tables in the order that an address asks for, moments, ages, links, figures. Pure.

`?sort=slices.memory` sorts a table, `?sort=-slices.memory` in reverse. Each column head is a link, so sorting works without a
script, and the page's live part keeps the order.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from tranche.core.quantity import format_memory
from tranche.documents import describe
from tranche.documents.blocks import Document, holder_without_id, holder_without_user, whose
from tranche.documents.markup import Child, Element, element

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ([GM])iB", re.ASCII)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)", re.ASCII)


def table(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Child | None]],
    empty: str,
    heads: Sequence[Element] = (),
    id: str | None = None,
) -> Element:
    """A table with a caption; the first cell of each row is its head. `empty` is said where there are no rows.

    `heads` are cells to show for the columns, where these do more than name them.
    """
    if not rows:
        return element("p", empty, class_="muted")
    head = element("tr", heads or [element("th", each, scope="col") for each in columns])
    body = [
        element(
            "tr",
            element("th", _shown(row[0]), scope="row"),
            [
                element("td", _shown(each), data_label=column, class_="none" if each is None or each == "" else None)
                for each, column in zip(row[1:], columns[1:], strict=True)
            ],
        )
        for row in rows
    ]
    sortable = "sortable" if heads else None
    made = element("table", element("caption", name), element("thead", head), element("tbody", body), class_=sortable)
    return element("div", made, class_="wide", role="region", aria_label=name, tabindex=0, id=id)


def figures(pairs: Iterable[tuple[str, Child]]) -> Element:
    """The figures to see first, each with its word."""
    return element(
        "dl", [element("div", element("dt", word), element("dd", shown)) for word, shown in pairs], class_="figures"
    )


def moment(rfc3339: str) -> Element:
    """A moment; the page's script writes it in the viewer's zone."""
    said = f"{rfc3339[:10]} {rfc3339[11:19]} UTC"
    return element("time", said, datetime=rfc3339, class_="moment")


def span_since(rfc3339: str, now: float) -> Element:
    """How long ago that was; the page's script keeps it current."""
    began = datetime.datetime.fromisoformat(rfc3339).timestamp()
    return element("time", describe.age(now - began), datetime=rfc3339, class_="age")


def memory(amount: int | None) -> str:
    """An amount of memory with its unit."""
    return "" if amount is None else format_memory(amount)


def measured(value: float | None, unit: str) -> str:
    """A gauge's value, `%` of a share of 1; in words where there is none, since 0 is a measured value."""
    if value is None:
        return "not measurable"
    return f"{value:.0%}" if unit == "%" else f"{value:.0f}{unit}"


def code(text: str) -> Element:
    """Text for machines: a command, an id."""
    return element("code", text)


def gpu_link(uuid: str, said: str) -> Element:
    """A link to a GPU's page."""
    return element("a", said, href=f"/gpus/{quote(uuid, safe='')}", id=f"to-{uuid}")


def node_link(name: str) -> Element:
    """A link to a node's page."""
    return element("a", name, href=f"/nodes/{quote(name, safe='', errors='replace')}")


def share_link(allocation_id: str) -> Element:
    """A link to the page of a share's life."""
    return element("a", allocation_id, href=f"/shares/{quote(allocation_id, safe='')}")


def share_and_user(ids: Sequence[str], known: Mapping[str, Document]) -> tuple[Element | None, str]:
    """Who holds something, each by what runs in it, and the users or namespaces; None and "" where it is not held."""
    found: list[Child] = []
    for each in ids:
        found += [", "] if found else []
        found.append(_share(each, holder_without_user(known[each]) if each in known else "", known))
    users = dict.fromkeys(whose(known[each]) for each in ids if each in known)
    return element("span", found) if found else None, ", ".join(filter(None, users))


def named_share(allocation_id: str, known: Mapping[str, Document]) -> Element:
    """A link to a share's page, named by what runs in it and its owner; from the `known` ones."""
    return _share(allocation_id, holder_without_id(known[allocation_id]) if allocation_id in known else "", known)


def _share(allocation_id: str, name: str, known: Mapping[str, Document]) -> Element:
    way = element("a", name or allocation_id, href=f"/shares/{quote(allocation_id, safe='')}")
    seconds = known.get(allocation_id, {}).get("idleSeconds")
    idle = None if seconds is None else f" {describe.idle(seconds)}"
    return element("span", way, [" ", element("span", allocation_id, class_="muted")] if name else None, idle)


def select(name: str, word: str, offered: Mapping[str, str], chosen: str) -> Element:
    """A form field that offers words for values; it always offers the chosen one."""
    every = {**offered, **({chosen: offered.get(chosen, chosen)} if chosen else {})}
    options = [element("option", said, value=value, selected=value == chosen) for value, said in every.items()]
    return element("label", word, element("select", options, name=name, id=name))


def layout_choice(names: Iterable[str], chosen: str, address: str) -> Element:
    """The form that asks what a layout would do."""
    return element(
        "form",
        select("layout", "Layout", {each: each for each in names}, chosen),
        element("button", "What would it do?"),
        action=address,
        method="get",
        class_="ask",
        aria_label="Preview a layout",
    )


def maker(owned: bool | None) -> str | None:
    """Who made a slice; None where unknown."""
    return None if owned is None else "Tranche" if owned else "others"


def notes(texts: Iterable[str]) -> list[Element]:
    """What a viewer has to know about the picture."""
    return [element("p", each, class_="note") for each in texts]


def _shown(cell: Child | None) -> Child:
    return "–" if cell is None or cell == "" else cell


@dataclass(frozen=True, slots=True)
class DashboardFinding:
    """What it is, where it is shown, and since when: RFC 3339, "" where unknown."""

    said: str
    address: str
    since: str = ""


def needs_line(needs: Sequence[DashboardFinding], now: float, none: str = "Nothing needs attention.") -> Element:
    """What to show before everything else; `none` is said where there is nothing."""
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
