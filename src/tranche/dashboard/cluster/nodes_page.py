"""The first view of a cluster: counts, and a row for each chosen node, with its GPUs as small bars, in numbers and in words.

A row names no holder: all viewers see the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from tranche.dashboard.cluster.snapshot import (
    ClusterChange,
    ClusterSnapshot,
    NameVisibility,
    SeenNode,
    apart,
    namespace_of,
    unshown,
)
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.live import PageUpdate, message
from tranche.dashboard.parts import DashboardFinding, TableOrder, figures, moment, needs_line, node_link, notes, select
from tranche.documents import describe
from tranche.documents.blocks import BarBlock, BlockRow, BlockStatus, blocks_of, short_holder
from tranche.documents.markup import Child, Element, KeptElement, element
from tranche.documents.picture import CLASSES, pattern_of, swatch

_IN_LINE = 8
_STEP, _BAR, _HEIGHT, _LINE = 96, 88, 16, 20
COLUMNS = ("Node", "GPUs", "Held", "Idle", "Free", "Used", "State")
"""The columns of a table of nodes."""

NOT_SEEN, NOT_READY, CORDONED, TROUBLE = "not seen", "not ready", "cordoned", "trouble"
WITHHELD, CHANGING = "withheld", "being changed"
"""States of single GPUs. Why one is not given away may name someone, and only its node's page says it."""
UNKNOWN = "unknown"
_ROOM = frozenset({BlockStatus.FREE, BlockStatus.IDLE})
"""Room that can be given; whether a node that is not heard still has it is unknown."""
NEEDING: Mapping[str, str] = {
    BlockStatus.LOST: "a GPU is lost",
    BlockStatus.FAULTY: "a GPU is faulty",
    NOT_SEEN: "not seen",
    NOT_READY: "not ready",
    BlockStatus.MISSING: "a slice is missing",
}
"""The states in which a node needs attention, the worst first, in words."""
_TROUBLING = frozenset(NEEDING)
_CAPTION = (
    "Nodes with GPUs, according to Kubernetes or their agents. Each bar is a GPU, with its slices in order of placement. "
    "'Used' is the amount of GPU memory that programs use."
)

_COUNTED = ("nodes", "nodes not seen", "GPUs", "slices", "slices held", "slices idle", "slices unknown", "shares")
"""What is counted of each node. All known slices are counted; those of nodes that are not heard are neither held nor idle."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A row, and what finds it. `changed` is the version in which the node became what it is.

    `said` is the row's text without the holders' names, in lower case. `holders` are those names: of each allocation the
    namespace and the name, in lower case. `keys` are the sort keys, in the order of the columns after the node's name; None if
    unknown. `counts` are those of _COUNTED.
    """

    name: str
    changed: int
    shown: KeptElement
    counts: tuple[int, ...]
    said: str
    models: frozenset[str]
    states: frozenset[str]
    holders: tuple[tuple[str, str], ...]
    keys: tuple[float | None, ...]


class RowCache:
    """The rows of a cluster's nodes. Rows of unchanged nodes are reused."""

    def __init__(self) -> None:
        self._rows: dict[str, NodeRow] = {}

    def rows(self, snapshot: ClusterSnapshot) -> Sequence[NodeRow]:
        """A row for each node, by name."""
        if len(self._rows) > 2 * len(snapshot.nodes) + 100:
            self._rows = {name: row for name, row in self._rows.items() if name in snapshot.nodes}
        return [self.row(node) for node in snapshot.nodes.values()]

    def row(self, node: SeenNode) -> NodeRow:
        """The row of one node."""
        found = self._rows.get(node.name)
        if found is None or found.changed != node.changed:
            made = apart(node.name, lambda: node_row(node), lambda: node_row(unshown(node)))
            found = self._rows[node.name] = made
        return found


def node_row(node: SeenNode) -> NodeRow:
    """The row of a node."""
    gpus, allocations = node.overview["gpus"], node.overview["allocations"]
    drawn = blocks_of(gpus, allocations)
    slices = Counter(each["state"] for gpu in gpus for each in gpu["slices"])
    heard = _heard(node)
    total = slices.total()
    of_slices = (total, slices["held"], slices["idle"], 0) if heard else (total, 0, 0, total)
    models = Counter(str(gpu["name"]).removeprefix("NVIDIA ").strip() for gpu in gpus)
    states = frozenset(_states(node, drawn))
    told = ", ".join(f"{count} × {model}" for model, count in models.items()) or "no GPU is known"
    state = "; ".join(_state_words(node, drawn))
    labels = " ".join(f"{name}={value}" for name, value in node.standing.labels.items())
    said = " ".join((node.name, told, node.standing.mode, labels, state, *sorted(states), *(gpu.uuid for gpu in drawn)))
    return NodeRow(
        name=node.name,
        changed=node.changed,
        shown=_shown(node, drawn, told, state).kept(),
        counts=(1, 0 if heard else 1, len(gpus), *of_slices, len(allocations)),
        said=said.casefold(),
        models=frozenset(models),
        states=states,
        holders=tuple((namespace_of(each), short_holder(each).casefold()) for each in allocations),
        keys=_keys(node, drawn, states),
    )


def _keys(node: SeenNode, drawn: Sequence[BlockRow], states: frozenset[str]) -> tuple[float | None, ...]:
    """How many GPUs there are, what is held, idle and free of them, how much memory is used, and how bad the state is."""
    looks = Counter(each.look for gpu in drawn for each in gpu.blocks)
    counts = (looks[BlockStatus.HELD] + looks[BlockStatus.SHARED], looks[BlockStatus.IDLE], _free(drawn), _used(node))
    known: Sequence[float | None] = counts if _heard(node) else (None,) * len(counts)
    worst = next((place for place, state in enumerate(NEEDING) if state in states), len(NEEDING))
    return (len(drawn), *known, worst)


def told_in_short(gpus: Sequence[BlockRow]) -> str:
    """The contents of the GPUs, in words for screen readers; equal neighbours are said once."""
    groups: list[tuple[int, int, str]] = []
    for place, gpu in enumerate(gpus):
        counts = Counter(str(each.look) for each in gpu.blocks)
        said = ", ".join(f"{counts[look]} {look}" for look in BlockStatus if counts[look])
        if groups and groups[-1][2] == said:
            groups[-1] = (groups[-1][0], place, said)
        else:
            groups.append((place, place, said))
    heads = (gpus[first].label if first == last else f"{gpus[first].label} to {last}" for first, last, _ in groups)
    return "; ".join(f"{head}: {said}" for head, (_, _, said) in zip(heads, groups, strict=True)) or "no GPU is known"


def _shown(node: SeenNode, drawn: Sequence[BlockRow], told: str, state: str) -> Element:
    looks, heard = Counter(each.look for gpu in drawn for each in gpu.blocks), _heard(node)
    cells: list[tuple[str, Child | Sequence[Child]]] = [
        ("GPUs", _bars(drawn, "" if heard else "as last seen: ") if drawn else "not known"),
        ("Held", str(looks[BlockStatus.HELD] + looks[BlockStatus.SHARED]) if heard else UNKNOWN),
        ("Idle", str(looks[BlockStatus.IDLE]) if heard else UNKNOWN),
        ("Free", UNKNOWN if not heard else "–" if (free := _free(drawn)) is None else f"{free:.0%}"),
        ("Used", UNKNOWN if not heard else "–" if (used := _used(node)) is None else f"{used:.0%}"),
        ("State", _last_seen(node, state)),
    ]
    return element(
        "tr",
        element(
            "th",
            node_link(node.name),
            element("span", told, class_="muted"),
            scope="row",
            role="rowheader",
        ),
        [element("td", shown, role="cell", data_label=column) for column, shown in cells],
        role="row",
        id=f"node-{node.name}",
        data_changed=node.changed,
    )


def _heard(node: SeenNode) -> bool:
    """Whether its report is current."""
    return not node.trouble and node.seen is not None


def _last_seen(node: SeenNode, state: str) -> list[Child]:
    if not node.trouble or node.seen is None:
        return [state or "–"]
    return [f"{state}: last seen ", moment(describe.timestamp(node.seen))]


def _free(drawn: Sequence[BlockRow]) -> float | None:
    total = sum(gpu.units for gpu in drawn)
    free = sum(each.size for gpu in drawn for each in gpu.blocks if each.look is BlockStatus.FREE)
    return free / total if total else None


def _used(node: SeenNode) -> float | None:
    """The fraction of the GPUs' memory that programs use; None if unknown."""
    known = [
        (each["memoryBytes"], each["memoryFreeBytes"])
        for each in node.overview["gpus"]
        if each["memoryBytes"] and each["memoryFreeBytes"] is not None and not each["lost"]
    ]
    total = sum(memory for memory, _ in known)
    return max(0.0, 1 - sum(free for _, free in known) / total) if total else None


def _states(node: SeenNode, drawn: Sequence[BlockRow]) -> Iterator[str]:
    # A cordoned GPU is the business of `_marked`; this word is for nodes.
    looks = {each.look for gpu in drawn for each in gpu.blocks} - {BlockStatus.CORDONED}
    found = {str(look) for look in (looks if _heard(node) else looks - _ROOM)} | set(_standing(node))
    found |= {word for word, count in _marked(node) if count}
    yield from found
    if found & _TROUBLING:
        yield TROUBLE


def _standing(node: SeenNode) -> Iterator[str]:
    if not _heard(node):
        yield NOT_SEEN
    if node.standing.ready is False:
        yield NOT_READY
    if node.standing.unschedulable:
        yield CORDONED


def _marked(node: SeenNode) -> Iterator[tuple[str, int]]:
    gpus = node.overview["gpus"]
    yield WITHHELD, sum(bool(gpu.get("withheld")) for gpu in gpus)
    yield CHANGING, sum(bool(gpu["changing"]) for gpu in gpus)


def _state_words(node: SeenNode, drawn: Sequence[BlockRow]) -> Iterator[str]:
    standing = list(_standing(node))
    yield from (word for word in standing if word != NOT_SEEN)
    looks = Counter(each.look for gpu in drawn for each in gpu.blocks)
    yield from (
        f"{looks[look]} {look}"
        for look in (
            BlockStatus.LOST,
            BlockStatus.FAULTY,
            BlockStatus.MISSING,
            BlockStatus.IN_USE,
            BlockStatus.PREPARING,
        )
        if looks[look]
    )
    yield from (f"{count} GPU{'s' if count > 1 else ''} {word}" for word, count in _marked(node) if count)
    if NOT_SEEN in standing:
        yield node.trouble or "its agent is silent"


def _bars(gpus: Sequence[BlockRow], said_first: str) -> Element:
    """The bars of all GPUs, eight to a line. Blocks that look alike are one path, because there may be tens of thousands."""
    paths: dict[tuple[BlockStatus, bool], list[str]] = {}
    for place, gpu in enumerate(gpus):
        for each in gpu.blocks:
            paths.setdefault((each.look, each.foreign), []).append(_box(place, each, gpu.units))
    whole = BarBlock(0, 1, BlockStatus.FREE, "", "", "")
    changing = "".join(_box(place, whole, 1) for place, gpu in enumerate(gpus) if gpu.changing)
    height = _LINE * -(-len(gpus) // _IN_LINE)
    return element(
        "svg",
        [each for (look, foreign), drawn in sorted(paths.items()) for each in _paths(look, foreign, "".join(drawn))],
        element("path", d=changing, class_="tr-changing") if changing else None,
        role="img",
        aria_label=f"{said_first}{told_in_short(gpus)}",
        viewBox=f"0 0 {_IN_LINE * _STEP} {height}",
        height=height,
        preserveAspectRatio="none",
        class_="bars",
    )


def _box(place: int, each: BarBlock, units: int) -> str:
    left = place % _IN_LINE * _STEP + 4 + _BAR * each.start / units
    width = _BAR * each.size / units
    return f"M{left:.4g} {place // _IN_LINE * _LINE + 2}h{width:.3g}v{_HEIGHT}h-{width:.3g}z"


def _paths(look: BlockStatus, foreign: bool, d: str) -> Iterator[Element]:
    yield element("path", d=d, class_=f"{CLASSES[look]} tr-box{' tr-foreign' if foreign else ''}")
    if (pattern := pattern_of(look)) != "none":
        yield element("path", d=d, fill=pattern)


def shown_looks(rows: Iterable[NodeRow]) -> Mapping[str, str]:
    """The states of these rows, each with its word, in the order of the filter."""
    present = frozenset[str]().union(*(row.states for row in rows))
    words = {TROUBLE: "in trouble", NOT_SEEN: NOT_SEEN, NOT_READY: NOT_READY, CORDONED: CORDONED}
    words |= {WITHHELD: WITHHELD, CHANGING: CHANGING} | {str(look): str(look) for look in BlockStatus}
    return {state: word for state, word in words.items() if state in present}


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
    feed = "" if choice.sort else f"/live?rows=1{'&' if choice.query else ''}{choice.query}"
    # Single rows are sent in the order of their names; with any other order, a change makes the page ask for the whole table.
    return DashboardPage("Fleet", live, _form(rows, choice, sight), feed=feed)


def nodes_summary(rows: Sequence[NodeRow], chosen: int, choice: NodeFilter) -> Element:
    """The counts of the cluster, and how many nodes are chosen."""
    total = [sum(row.counts[place] for row in rows) for place in range(len(_COUNTED))]
    said = f"{chosen:,} of {total[0]:,} nodes match." if choice.leaves_out else None
    return element(
        "div",
        needs_line(_needs(rows), 0.0, "No node that you can see is in trouble."),
        figures((word, f"{count:,}") for word, count in zip(_COUNTED, total, strict=True)),
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
