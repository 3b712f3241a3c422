"""The first view of a cluster: a row for each chosen node, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from tranche.dashboard.cluster.node_row import CHANGING, COLUMNS, NEEDING, NodeRow, NodeSummary, RowCache, shown_looks
from tranche.dashboard.cluster.snapshot import ClusterChange, ClusterSnapshot
from tranche.dashboard.cluster.visibility import NameVisibility
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.live import PageUpdate, message
from tranche.dashboard.parts import DashboardFinding, figures, needs_line, notes, select
from tranche.dashboard.table_order import TableOrder
from tranche.documents.blocks import BlockStatus
from tranche.documents.markup import Element, element
from tranche.documents.picture import swatch

_CAPTION = (
    "Nodes that have GPUs, or whose agent tells of them. Each bar is a GPU, its slices in the order of their placement. "
    "Used is how much of their memory programs use."
)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """What an address asks for; "" is everything. `q` matches the text of a node or of a holder. `sort` is the order."""

    q: str = ""
    state: str = ""
    model: str = ""
    namespace: str = ""
    sort: str = ""

    @classmethod
    def asked(cls, query: Mapping[str, str]) -> NodeFilter:
        """What the address asks for."""
        return cls(*(query.get(name, "").strip() for name in ("q", "state", "model", "namespace", "sort")))

    @property
    def query(self) -> str:
        """The same in an address; "" for everything."""
        return urlencode(self.asked_for, errors="replace")

    @property
    def asked_for(self) -> Mapping[str, str]:
        """The fields of the address that ask for something."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def leaves_out(self) -> bool:
        """Whether it leaves anything out."""
        return bool(self.q or self.state or self.model or self.namespace)

    def takes(self, row: NodeRow, sight: NameVisibility) -> bool:
        """Whether the node matches, as far as the viewer may know."""
        if (self.state and self.state not in row.states) or (self.model and self.model not in row.models):
            return False
        if self.namespace and not any(each == self.namespace and sight.sees(each) for each, _ in row.holders):
            return False
        wanted = self.q.casefold()
        return (
            not wanted
            or wanted in row.said
            or any(wanted in f"{name} {namespace}" and sight.sees(namespace) for namespace, name in row.holders)
        )


def nodes_page(
    rows: Sequence[NodeRow], said: Sequence[str], choice: NodeFilter, sight: NameVisibility
) -> DashboardPage:
    """The chosen nodes; `said` is what is unknown about the cluster as a whole."""
    chosen = [each for each in rows if choice.takes(each, sight)]
    order = TableOrder("/", choice.asked_for)
    live = element("div", notes(said), nodes_summary(rows, len(chosen), choice), _key(), _table(chosen, order))
    # Single rows are sent in the order of their names; with any other order, a change makes the page ask for the whole table.
    return DashboardPage("Fleet", live, _form(rows, choice, sight), feed="" if choice.sort else feed_of(choice))


def feed_of(choice: NodeFilter) -> str:
    """The address of the updates for these rows."""
    return f"/live?rows=1{'&' if choice.query else ''}{choice.query}"


def nodes_summary(rows: Sequence[NodeRow], chosen: int, choice: NodeFilter) -> Element:
    """The counts of the cluster, and how many nodes are chosen."""
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


def change_of(news: PageUpdate[ClusterSnapshot]) -> ClusterChange | None:
    """What has changed since the page's last update; None if the page has to reload everything."""
    return None if news.since is None else news.snapshot.since(news.since)


def rows_message(news: PageUpdate[ClusterSnapshot], cache: RowCache, choice: NodeFilter, sight: NameVisibility) -> str:
    """The chosen rows that have changed, and the names of those that have gone; "" for nothing."""
    change = change_of(news)
    if change is None or not (change.nodes or change.gone):
        return ""
    changed = [cache.row(each) for each in change.nodes]
    taken = [each for each in changed if choice.takes(each, sight)]
    out = {each.name for each in changed} - {each.name for each in taken}
    every = cache.rows(news.snapshot)
    count = sum(choice.takes(each, sight) for each in every) if choice.query else len(every)
    told = {
        "rows": "".join(str(each.shown) for each in taken),
        "gone": sorted({*change.gone, *out}),
        "summary": str(nodes_summary(every, count, choice)),
    }
    return message("rows", told)


def _needs(rows: Sequence[NodeRow]) -> list[DashboardFinding]:
    """The states of nodes in trouble, each with the link to those nodes."""
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
    """The legend of the blocks: all of them, because the next change may bring any."""
    marks: list[tuple[BlockStatus | str, str]] = [("tr-foreign", "not made by Tranche"), ("tr-changing", CHANGING)]
    entries = [
        element("li", element("svg", swatch(look, 0, 0), width=22, height=14, aria_hidden="true"), " ", word)
        for look, word in [*((look, str(look)) for look in BlockStatus), *marks]
    ]
    return element("ul", entries, class_="key", aria_label="What the blocks mean")


def _in_order(rows: Sequence[NodeRow], order: TableOrder) -> Sequence[NodeRow]:
    """The rows, given by name, in the wanted order; unknown values come last."""
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
    # Roles are explicit: some screen readers do not recognise a table whose rows have a layout of their own.
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
        select("state", "State", {"": "any", **shown_looks(rows)}, choice.state),
        select("model", "Model", {"": "every", **models}, choice.model),
        select("namespace", "Namespace", {"": "every", **{each: each for each in sorted(spaces)}}, choice.namespace),
        element("input", type="hidden", name="sort", value=choice.sort) if choice.sort else None,
        element("button", "Show"),
        action="/",
        method="get",
        role="search",
        class_="ask",
    )
