"""The first view of a cluster: a row for each node, those that somebody looks for, and how many of what there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from tranche.dashboard.cluster.choice import NodeFilter
from tranche.dashboard.cluster.node_row import CHANGING, COLUMNS, NEEDING, NodeRow, NodeSummary, shown_looks
from tranche.dashboard.cluster.visibility import NameVisibility
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.needs import DashboardFinding, needs_line
from tranche.dashboard.parts import figures, notes
from tranche.dashboard.table_order import TableOrder
from tranche.documents.bar import swatch
from tranche.documents.blocks import BlockStatus
from tranche.documents.markup import Element, element

_CAPTION = (
    "Nodes that have GPUs, or whose agent tells of them. Each bar is a GPU, its slices in the order of their placement. "
    "Used is how much of their memory programs use."
)


def nodes_page(
    rows: Sequence[NodeRow], said: Sequence[str], choice: NodeFilter, sight: NameVisibility
) -> DashboardPage:
    """The nodes that are chosen, of all; `said` is what is not known of the cluster as a whole."""
    chosen = [each for each in rows if choice.takes(each, sight)]
    order = TableOrder("/", choice.asked_for)
    live = element("div", notes(said), nodes_summary(rows, len(chosen), choice), _key(), _table(chosen, order))
    # Single rows are told in the order of their names; in any other, the whole table is asked for when something has changed.
    return DashboardPage("Fleet", live, _form(rows, choice, sight), feed="" if choice.sort else feed_of(choice))


def feed_of(choice: NodeFilter) -> str:
    """The address that tells of the rows of these nodes."""
    return f"/live?rows=1{'&' if choice.query else ''}{choice.query}"


def nodes_summary(rows: Sequence[NodeRow], chosen: int, choice: NodeFilter) -> Element:
    """How many of what there are in the cluster, and how many nodes are chosen."""
    total = NodeSummary.total(each.tally for each in rows)
    counted = {
        "nodes": total.nodes,
        "nodes not seen": total.unheard,
        "GPUs": total.gpus,
        "slices": total.slices,
        "slices held": total.held,
        "slices idle": total.idle,
        "slices unknown": total.unknown,
        "shares": total.shares,
    }
    said = f"{chosen:,} of {total.nodes:,} nodes are such." if choice.leaves_out else None
    return element(
        "div",
        needs_line(_needs(rows), 0.0, "No node that you see is in trouble."),
        figures((word, f"{count:,}") for word, count in counted.items()),
        element("p", said) if said else None,
        id="summary",
    )


def _needs(rows: Sequence[NodeRow]) -> list[DashboardFinding]:
    """The states in which nodes are in trouble, each with the way to those nodes."""
    counted = Counter(state for row in rows for state in row.states)
    return [
        DashboardFinding(
            f"{counted[state]:,} {'nodes' if counted[state] > 1 else 'node'}: {word}",
            f"/?{urlencode({'state': state})}",
        )
        for state, word in NEEDING.items()
        if counted[state]
    ]


def _key() -> Element:
    """What the looks of the blocks mean: all of them, for the next change may bring any."""
    marks: list[tuple[BlockStatus | str, str]] = [("tr-foreign", "not made by Tranche"), ("tr-changing", CHANGING)]
    entries = [
        element("li", element("svg", swatch(look, 0, 0), width=22, height=14, aria_hidden="true"), " ", word)
        for look, word in [*((look, str(look)) for look in BlockStatus), *marks]
    ]
    return element("ul", entries, class_="key", aria_label="What the blocks mean")


def _in_order(rows: Sequence[NodeRow], order: TableOrder) -> Sequence[NodeRow]:
    """The rows, which are by name, in the order that is asked for; what is not known comes last."""
    if order.is_by("nodes", COLUMNS[0]):
        return rows[::-1] if order.down else rows
    by = next((place for place, each in enumerate(COLUMNS[1:]) if order.is_by("nodes", each)), None)
    if by is None:
        return rows
    known = sorted(
        (row for row in rows if row.keys[by] is not None), key=lambda row: row.keys[by] or 0, reverse=order.down
    )
    return [*known, *(row for row in rows if row.keys[by] is None)]


def _table(chosen: Sequence[NodeRow], order: TableOrder) -> Element:
    # Roles are named, for a table whose rows are laid out by themselves is none to some screen readers.
    heads = [each.with_attributes(role="columnheader") for each in order.heads("nodes", COLUMNS)]
    head = element("tr", heads, role="row")
    return element(
        "table",
        element(
            "caption",
            _CAPTION,
        ),
        element("thead", head, role="rowgroup"),
        element("tbody", [each.shown for each in _in_order(chosen, order)], id="rows", role="rowgroup"),
        role="table",
        class_="nodes sortable",
        id="nodes",
    )


def _form(rows: Sequence[NodeRow], choice: NodeFilter, sight: NameVisibility) -> Element:
    models = {each: each for each in sorted(frozenset[str]().union(*(row.models for row in rows)))}
    spaces = {each for row in rows for each, _ in row.holders if each and sight.sees(each)}
    return element(
        "form",
        element("label", "Find", element("input", type="search", name="q", value=choice.q, id="q")),
        _select("state", "State", "any", shown_looks(rows), choice.state),
        _select("model", "Model", "every", models, choice.model),
        _select("namespace", "Namespace", "every", {each: each for each in sorted(spaces)}, choice.namespace),
        element("input", type="hidden", name="sort", value=choice.sort) if choice.sort else None,
        element("button", "Show"),
        action="/",
        method="get",
        role="search",
        class_="ask",
    )


def _select(name: str, word: str, none: str, offered: Mapping[str, str], chosen: str) -> Element:
    every = {"": none, **offered} | ({chosen: offered.get(chosen, chosen)} if chosen else {})
    options = [element("option", said, value=value, selected=value == chosen) for value, said in every.items()]
    return element("label", word, element("select", options, name=name, id=name))
