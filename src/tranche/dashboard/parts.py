"""Pieces of pages: tables, moments, ages, links, figures."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tranche.core.quantity import format_memory
from tranche.documents import describe
from tranche.documents.blocks import Document, holder_without_id, holder_without_user, whose
from tranche.documents.markup import Child, Element, element


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
        found.append(_share(each, holder_without_user(known[each]) if each in known else ""))
    users = dict.fromkeys(whose(known[each]) for each in ids if each in known)
    return element("span", found) if found else None, ", ".join(filter(None, users))


def named_share(allocation_id: str, known: Mapping[str, Document]) -> Element:
    """A link to a share's page, named by what runs in it and its owner; from the `known` ones."""
    return _share(allocation_id, holder_without_id(known[allocation_id]) if allocation_id in known else "")


def _share(allocation_id: str, name: str) -> Element:
    way = element("a", name or allocation_id, href=f"/shares/{quote(allocation_id, safe='')}")
    return element("span", way, [" ", element("span", allocation_id, class_="muted")] if name else None)


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


def needs_line(needs: Sequence[DashboardFinding], now: float, none: str = "Nothing needs you.") -> Element:
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
