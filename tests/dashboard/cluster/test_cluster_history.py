"""What a server has seen of each GPU: at every moment at which a node was heard, it is what the node told then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.cluster.reviewing import People
from tests.dashboard.cluster.served_cluster import served_cluster_page, tell
from tests.dashboard.cluster.teams import OUR_SIGHT, shared_machines
from tests.dashboard.cluster.test_cluster_server import held_by, wait_until
from tests.dashboard.reading import parsed, tables, text_of
from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.fleet.clusters import node as node_object
from tranche.core.allocation import NodeView
from tranche.dashboard.cluster.cluster_history import (
    MOST_SILENCES,
    ClusterHistory,
    GpuHistory,
    UnreportedSpan,
    past_view,
)
from tranche.dashboard.cluster.redaction import redacted_overview
from tranche.dashboard.cluster.snapshot import HIDDEN, ClusterSnapshot, NameVisibility, SeenNode
from tranche.documents.blocks import Document
from tranche.documents.describe import timestamp
from tranche.documents.overview import overview_data

UUID = "GPU-1"
ALL = NameVisibility(everywhere=True)
BEGAN = 1_700_000_000.0

State = tuple[frozenset[int], frozenset[tuple[str, int]]]
"""The starts of the slices that are there, and the shares with the slices that they hold."""
STATES = st.builds(
    lambda slices, held: (
        frozenset(slices),
        frozenset((f"s{n}-{place}", place) for n, place in held if place in slices),
    ),
    st.sets(st.integers(0, 2)),
    st.sets(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=3),
)


def overview_of(state: State, *, lost: bool = False) -> Document:
    slices, shares = state

    def at(start: int) -> dict[str, Any]:
        return {"profile": "1g.5gb", "placement": {"start": start, "size": 1}}

    found = [{**at(start), "gpuInstanceId": start + 1, "owned": True} for start in sorted(slices)]
    held = [
        {
            "id": id,
            "created": timestamp(BEGAN - 100),
            "command": "",
            "keeper": {"kind": "pod", "namespace": "blue", "name": f"pod-{id}"},
            "grants": [{**at(start), "gpuUUID": UUID}],
        }
        for id, start in sorted(shares)
    ]
    gpu = {
        "uuid": UUID,
        "index": 0,
        "memorySlices": 8,
        "memoryBytes": 40 * 1024**3,
        "lost": lost,
        "slices": [] if lost else found,
    }
    return {"gpus": [gpu], "allocations": held, "waiters": []}


def seen(state: State, at: float, trouble: str = "", *, lost: bool = False) -> SeenNode:
    return SeenNode("n1", overview=overview_of(state, lost=lost), seen=at, trouble=trouble)


def taken(book: ClusterHistory, nodes: Sequence[tuple[SeenNode, float]]) -> ClusterSnapshot:
    """Every node in a snapshot of its own, of the moment beside it."""
    snapshot = ClusterSnapshot()
    for node, at in nodes:
        snapshot = snapshot.after([node], at)
        book.take(snapshot)
    return snapshot


def state_at(past: GpuHistory, last: State, at: float) -> State:
    slices = {
        each.place.start
        for each in past.ended
        if not each.allocation_id and (each.began or 0) <= at < (each.ended or 0)
    }
    shares = {
        (each.allocation_id, each.place.start) for each in past.ended if each.allocation_id and at < (each.ended or 0)
    }
    slices |= {start for start in last[0] if all(p.start != start or began <= at for p, began in past.began.items())}
    return frozenset(slices), frozenset(shares)


@given(st.lists(STATES, min_size=1, max_size=12))
def test_at_every_moment_it_is_what_was_told_then(states: list[State]) -> None:
    book = ClusterHistory()
    taken(book, [(seen(each, BEGAN + n), BEGAN + n) for n, each in enumerate(states)])
    past = book.past("n1", UUID)
    assert past.since == BEGAN
    for n, (slices, shares) in enumerate(states):
        found, ended = state_at(past, states[-1], BEGAN + n)
        assert found == slices
        # A share came into being before it was first heard of: of those that are over each was there until it had gone.
        assert {each for each in shares if any(each not in later[1] for later in states[n:])} <= ended
    gone = {id for _, shares in states for id, _ in shares}
    assert {each.allocation_id for each in past.ended if each.allocation_id} <= gone


@given(st.lists(STATES, min_size=2, max_size=40), st.integers(1, 6))
def test_what_is_kept_is_bounded_and_since_when_it_is_whole_is_said(states: list[State], most: int) -> None:
    whole, bounded = ClusterHistory(), ClusterHistory(most)
    for book in (whole, bounded):
        taken(book, [(seen(each, BEGAN + n), BEGAN + n) for n, each in enumerate(states)])
    every, kept = whole.past("n1", UUID), bounded.past("n1", UUID)
    assert kept.ended == every.ended[-most:] if every.ended else kept.ended == ()
    forgotten = every.ended[: len(every.ended) - len(kept.ended)]
    assert kept.since == max([BEGAN, *(each.ended or 0.0 for each in forgotten)])


ONE: State = (frozenset({0}), frozenset({("a", 0)}))
NONE: State = (frozenset(), frozenset())


def test_what_goes_while_a_node_is_silent_is_shown_until_it_was_heard_last() -> None:
    book = ClusterHistory()
    nodes = [(seen(ONE, 10.0), 10.0), (seen(ONE, 50.0), 50.0), (seen(ONE, 50.0, "it is silent"), 200.0)]
    snapshot = taken(book, nodes)
    assert book.past("n1", UUID).silences == (UnreportedSpan(50.0, None),)
    assert book.past("n1", UUID).ended == ()
    book.take(snapshot.after([seen(NONE, 300.0)], 300.0))
    past = book.past("n1", UUID)
    assert past.silences == (UnreportedSpan(50.0, 300.0),)
    assert {each.ended for each in past.ended} == {50.0}


def test_what_goes_while_the_server_hears_nothing_is_shown_until_it_heard_last() -> None:
    book = ClusterHistory()
    snapshot = ClusterSnapshot().after([seen(ONE, 10.0)], 10.0)
    book.take(snapshot)
    snapshot = snapshot.after([seen(ONE, 40.0)], 45.0)
    book.take(snapshot, "the API server does not answer")
    assert book.past("n1", UUID).silences == (UnreportedSpan(45.0, None),)
    snapshot = snapshot.after([seen(ONE, 40.0)], 90.0)
    book.take(snapshot)
    snapshot = snapshot.after([seen(NONE, 91.0)], 91.0)
    book.take(snapshot)
    past = book.past("n1", UUID)
    assert past.silences == (UnreportedSpan(45.0, 90.0),)
    assert {each.ended for each in past.ended} == {45.0}
    # What comes and goes afterwards is known to the moment.
    for at, state in ((95.0, ONE), (96.0, NONE)):
        snapshot = snapshot.after([seen(state, at)], at)
        book.take(snapshot)
    assert {each.ended for each in book.past("n1", UUID).ended} == {45.0, 96.0}


def test_what_nobody_can_read_is_not_gone() -> None:
    book = ClusterHistory()
    unread = SeenNode("n1", trouble="what its agent tells cannot be read")
    snapshot = taken(book, [(seen(ONE, 10.0), 10.0), (unread, 20.0), (seen(ONE, 30.0), 30.0)])
    assert book.past("n1", UUID).ended == ()
    snapshot = snapshot.after([seen((frozenset(), ONE[1]), 40.0, lost=True)], 40.0)
    book.take(snapshot)
    assert book.past("n1", UUID).ended == ()
    book.take(snapshot.after([seen((frozenset({1}), ONE[1]), 50.0)], 50.0))
    (slice_,) = book.past("n1", UUID).ended
    assert (slice_.place.start, slice_.ended, slice_.owned) == (0, 50.0, True)


def test_of_a_node_that_has_gone_nothing_is_kept() -> None:
    book = ClusterHistory()
    snapshot = taken(book, [(seen(ONE, 10.0), 10.0), (seen(NONE, 20.0), 20.0)])
    snapshot = snapshot.after([], 30.0, gone=["n1"])
    book.take(snapshot)
    assert book.past("n1", UUID).ended == ()
    book.take(snapshot.after([seen(ONE, 40.0)], 40.0))
    assert book.past("n1", UUID).began == {}


def test_silences_are_bounded() -> None:
    book, snapshot = ClusterHistory(), ClusterSnapshot()
    for n in range(3 * MOST_SILENCES):
        snapshot = snapshot.after([seen(ONE, n, "silent" if n % 2 else "")], float(n))
        book.take(snapshot, "deaf" if n % 3 else "")
    assert len(book.past("n1", UUID).silences) <= 2 * MOST_SILENCES + 1


def views_over_time(views: Sequence[NodeView]) -> Iterator[SeenNode]:
    for n, view in enumerate(views):
        yield SeenNode("n1", overview=overview_data(view, (), ()), seen=BEGAN + n)


@given(st.lists(shared_machines(), min_size=1, max_size=3))
def test_no_name_of_a_hidden_team_is_in_the_past(views: list[NodeView]) -> None:
    book = ClusterHistory()
    nodes = list(views_over_time(views))
    taken(book, [(node, BEGAN + n) for n, node in enumerate(nodes)])
    last = nodes[-1]
    redacted = replace(last, overview=redacted_overview(last.overview, OUR_SIGHT))
    for gpu in redacted.overview["gpus"]:
        past = book.past("n1", gpu["uuid"])
        assert "zebra" not in str(past_view(redacted, gpu, past, OUR_SIGHT, BEGAN + 60, 168))


def test_the_page_says_who_held_what_who_made_it_and_since_when_that_is_known() -> None:
    book = ClusterHistory()
    later: State = (frozenset({0, 1}), frozenset({("b", 1)}))
    taken(book, [(seen(ONE, BEGAN), BEGAN), (seen(later, BEGAN + 60), BEGAN + 60)])
    node = seen(later, BEGAN + 60)
    (gpu,) = node.overview["gpus"]
    past = book.past("n1", UUID)
    shown = parsed(str(past_view(node, gpu, past, ALL, BEGAN + 120, 1)))
    assert f"Watched since {timestamp(BEGAN)[:10]}" in text_of(shown)
    found = tables(shown)
    held = found["Past holders, newest first"]
    assert [(row[0], row[1], row[2], row[4][:10]) for row in held] == [
        ("b", "1g.5gb at 1:1", "pod blue/pod-b", "still held"),
        ("a", "1g.5gb at 0:1", "pod blue/pod-a", timestamp(BEGAN + 60)[:10]),
    ]
    there = found["Its slices, newest first"]
    assert [(row[0], row[1], row[2][:6], row[3]) for row in there] == [
        ("1g.5gb at 1:1", "Tranche", timestamp(BEGAN)[:6], "still there"),
        ("1g.5gb at 0:1", "Tranche", "before", "still there"),
    ]
    # A share that is over has no page any more.
    assert [each.get("href") for each in shown.iter("a") if "shares" in str(each.get("href"))] == ["/shares/b"]
    hidden = text_of(parsed(str(past_view(node, gpu, past, NameVisibility(), BEGAN + 120, 1))))
    assert "pod-a" not in hidden
    assert HIDDEN in hidden


def test_a_silence_is_said_and_an_old_one_is_not() -> None:
    node = seen(ONE, BEGAN)
    (gpu,) = node.overview["gpus"]
    past = GpuHistory(1.0, (), {}, (UnreportedSpan(BEGAN - 9_000, BEGAN - 8_000), UnreportedSpan(BEGAN - 60, None)))
    said = text_of(parsed(str(past_view(node, gpu, past, ALL, BEGAN, 1))))
    assert said.count("No report from") == 1
    assert text_of(parsed(str(past_view(node, gpu, past, ALL, BEGAN, 6)))).count("No report from") == 2


def test_a_server_shows_over_http_what_it_has_seen_and_each_viewer_the_names_that_are_his() -> None:
    people = People({"t-ana": "ana", "t-olga": "olga"})
    people.let("ana", "list pods", namespaces=["blue"])
    people.let("ana", "list nodes")
    people.let("olga", "list pods", "list nodes")
    address = f"/gpus/{a100s(1).node.gpus[0].uuid}"
    first, then = held_by(a100s(1), ("blue", 0), ("zebra", 1)), held_by(a100s(1), ("blue", 2))
    with served_cluster_page(people) as page:
        page.api.change(lambda server: server.put("/api/v1/nodes/n1", node_object("n1")))
        page.api.change(lambda server: tell(server, "n1", first))
        wait_until(page, lambda: "a1b1c1d1" in page.ask(address, "t-olga").text)
        page.api.change(lambda server: tell(server, "n1", then))
        wait_until(page, lambda: "a2b2c2d2" in page.ask(address, "t-olga").text)
        found = {}
        for token in ("t-ana", "t-olga"):
            shown = parsed(page.ask(address, token).text)
            assert "Watched since" in text_of(shown)
            rows = tables(shown)
            found[token] = {row[0]: row[2] for row in rows["Past holders, newest first"]}
            there = {row[0]: (row[2][:6], row[3][:5]) for row in rows["Its slices, newest first"]}
            assert there["1g.5gb at 1:1"] == ("before", timestamp(time.time())[:5])
            assert there["1g.5gb at 2:1"][1] == "still"
        assert found["t-olga"]["a1b1c1d1"] == "pod zebra/zebra-train-1"
        assert found["t-ana"]["a1b1c1d1"] == HIDDEN
        assert found["t-ana"]["a0b0c0d0"] == "pod blue/blue-train-0"
