"""Events, newest first or as asked, linked to their causes; and a share's whole life."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, figures, gpu_link, memory, moment, select, share_link, span_since, table
from tranche.documents.blocks import Document, holder_without_id
from tranche.documents.markup import Child, Element, element


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Events of that `kind` with that text in their words, "" for all; newest first, or the `oldest`."""

    kind: str = ""
    text: str = ""
    oldest: bool = False

    @classmethod
    def asked(cls, query: Mapping[str, str]) -> EventFilter:
        """What the address asks for."""
        return cls(query.get("kind", ""), query.get("q", ""), query.get("order", "") == "oldest")

    @property
    def leaves_out(self) -> bool:
        """Whether it leaves anything out."""
        return bool(self.kind or self.text)

    @property
    def caption(self) -> str:
        """The table's caption."""
        return "Events, oldest first" if self.oldest else "Events, newest first"

    def takes(self, kind: str, said: str) -> bool:
        """Whether it chooses an event of that kind with those words."""
        return (not self.kind or self.kind == kind) and self.text.casefold() in said.casefold()

    def said(self, found: int, of: int) -> str:
        """How many events it chooses, in words."""
        return f"{found:,} of {of:,} events match."

    def form(self, kinds: Collection[str]) -> Element:
        """The form that asks for other events."""
        offered = {"": "every"} | {each: each for each in sorted({*kinds, self.kind} - {""})}
        orders = {"": "newest first", "oldest": "oldest first"}
        return element(
            "form",
            element("label", "Find", element("input", type="search", name="q", value=self.text, id="q")),
            select("kind", "What", offered, self.kind),
            select("order", "Order", orders, "oldest" if self.oldest else ""),
            element("button", "Show"),
            action="/events",
            method="get",
            role="search",
            class_="ask",
        )


MOST = 300
"""Events on one page."""
_ALL = EventFilter()


def events_page(events: Sequence[Document], gpus: Sequence[Document], query: Mapping[str, str]) -> DashboardPage:
    """The newest events, or those that `query` asks for. `events` are all that are kept, oldest first."""
    choice = EventFilter.asked(query)
    found = [each for each in events if choice.takes(each["type"], _said(each, gpus))]
    shown = found[:MOST] if choice.oldest else found[-MOST:]
    said = choice.said(len(found), len(events)) if choice.leaves_out else ""
    if len(shown) < len(found):
        kind = "oldest" if choice.oldest else "newest"
        said = f"{said} Only the {kind} {MOST} are shown; 'tranche events --last N' prints more.".strip()
    made = element("div", element("p", said) if said else None, event_table(shown, gpus, choice))
    return DashboardPage("Events", made, choice.form({event["type"] for event in events}))


def _said(event: Document, gpus: Sequence[Document]) -> str:
    """All words of an event's row."""
    labels = [f"GPU {gpu['index']}" for gpu in gpus if gpu["uuid"] == event["gpuUUID"]]
    return " ".join(filter(None, (event["type"], event["gpuUUID"], *labels, event["allocationId"], event["message"])))


def event_table(events: Sequence[Document], gpus: Sequence[Document], choice: EventFilter = _ALL) -> Element:
    """A table of events, given oldest first, in the requested order. Each links to its cause where that is on the page."""
    labels = {gpu["uuid"]: f"GPU {gpu['index']}" for gpu in gpus}
    here = {event["position"] for event in events}
    rows = [_row(event, labels, here) for event in (events if choice.oldest else reversed(events))]
    return table(
        choice.caption,
        ("Number", "When", "What", "About", "In words", "Because of"),
        rows,
        "No events.",
    )


def share_page(allocation_id: str, overview: Document, events: Sequence[Document], now: float) -> DashboardPage | None:
    """All that is known of a share; None where nothing is."""
    found = next((each for each in overview["allocations"] if each["id"] == allocation_id), None)
    if found is None and not events:
        return None
    state: Child = "ended" if found is None else found["phase"]
    facts: list[tuple[str, Child]] = [("state", state)]
    if found is not None:
        facts += [
            ("since", span_since(found["created"], now)),
            ("for", code(holder_without_id(found) or "–")),
        ]
        facts += [("command", code(found["command"]))] if found["command"] else []
    given = None
    if found is not None:
        labels = {gpu["uuid"]: f"GPU {gpu['index']}" for gpu in overview["gpus"]}
        rows = [
            (
                gpu_link(grant["gpuUUID"], labels.get(grant["gpuUUID"], grant["gpuUUID"])),
                _piece(grant),
                grant["mechanism"],
                grant["isolation"],
                ", ".join(f"{wall} {word}" for wall, word in grant["walls"].items()),
            )
            for grant in found["grants"]
        ]
        given = table("What was granted", ("GPU", "What", "By", "Isolation", "Walls"), rows, "Nothing.")
    live = element("div", figures(facts), given, element("h2", "Its life"), event_table(events, overview["gpus"]))
    return DashboardPage(f"Share {allocation_id}", live)


def _piece(grant: Document) -> str:
    place = "the whole GPU"
    if grant["placement"] is not None:
        place = f"{grant['profile']} at {grant['placement']['start']}:{grant['placement']['size']}"
    return f"{memory(grant['memoryBytes'])} of {place}" if "memoryBytes" in grant else place


def _row(event: Document, labels: Mapping[str, str], here: set[int]) -> Sequence[Child | None]:
    about: Child | None = None
    if event["allocationId"]:
        about = share_link(event["allocationId"])
    elif event["gpuUUID"]:
        label = labels.get(event["gpuUUID"], event["gpuUUID"])
        about = element("a", label, href=f"/gpus/{event['gpuUUID']}") if event["gpuUUID"] in labels else label
    cause: Child | None = None
    if event["cause"] is not None:
        number = str(event["cause"])
        cause = element("a", number, href=f"#event-{number}") if event["cause"] in here else number
    number = str(event["position"])
    return (
        element("span", number, id=f"event-{number}"),
        moment(event["time"]),
        code(event["type"]),
        about,
        event["message"],
        cause,
    )
