"""Events that others may have written: whose are shown, with which time, and that nobody's push out those of others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.reading import parsed, tables
from tranche.dashboard.cluster.kube_event import KubeEvent, decode_kube_event, newest_fairly
from tranche.dashboard.cluster.waiting_page import cluster_events_page
from tranche.dashboard.frame import whole_page

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
CREATED = "2027-01-15T07:00:00Z"


def raw(namespace: str, number: int = 0, **more: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": namespace, "name": "p"}
    meta = {"namespace": namespace, "name": f"e-{number}", "uid": f"{namespace}-{number}", "creationTimestamp": CREATED}
    source = {"component": "tranche"}
    return {"metadata": meta, "involvedObject": about, "source": source, "lastTimestamp": CREATED, **more}


def about_node(namespace: str, number: int = 0, **more: Any) -> dict[str, Any]:
    return raw(namespace, number, involvedObject={"kind": "Node", "name": "n1"}, **more)


def believed(found: dict[str, Any]) -> KubeEvent:
    event = decode_kube_event(found).believed(NOW)
    assert event is not None
    return event


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ({"lastTimestamp": "2027-01-15T07:59:59Z"}, "2027-01-15T07:59:59Z"),
        ({"lastTimestamp": "2027-01-15T08:00:01Z"}, CREATED),
        ({"lastTimestamp": "2199-01-01T00:00:00Z"}, CREATED),
        ({"lastTimestamp": "soon"}, CREATED),
        ({"lastTimestamp": None, "eventTime": "2199-01-01T00:00:00.000000Z"}, CREATED),
        ({"lastTimestamp": None}, CREATED),
    ],
)
def test_a_time_that_is_still_to_come_does_not_count(said: dict[str, Any], counts: str) -> None:
    event = believed(raw("red", **said))
    assert event.last == counts
    assert event.at <= NOW
    # Once it has come, it counts.
    later = decode_kube_event(raw("red", lastTimestamp="2027-01-15T08:00:01Z")).believed(NOW + 1)
    assert later is not None
    assert later.last == "2027-01-15T08:00:01Z"


@pytest.mark.parametrize(
    ("written_in", "about"),
    [
        ("red", {"kind": "Node", "name": "n1", "namespace": "red"}),
        ("red", {"kind": "Node", "name": "n1"}),
        ("default", {"kind": "Node", "name": "n1", "namespace": "default"}),
        ("red", {"kind": "Pod", "name": "p", "namespace": "blue"}),
        ("default", {"kind": "Pod", "name": "p", "namespace": "blue"}),
    ],
)
def test_an_event_is_taken_only_from_where_the_api_server_puts_it(written_in: str, about: dict[str, str]) -> None:
    assert decode_kube_event(raw(written_in, involvedObject=about)).believed(NOW) is None


def test_one_about_a_node_is_of_no_namespace_and_one_without_an_object_of_its_own() -> None:
    assert believed(about_node("default")).namespace == ""
    assert believed(raw("red")).namespace == "red"
    assert believed(raw("red", involvedObject={})).namespace == "red"


def test_a_flood_of_one_namespace_pushes_out_nobody_elses() -> None:
    flood = [
        believed(raw("red", number, reportingComponent=component, source={}, lastTimestamp="2027-01-15T07:59:59Z"))
        for number in range(2_000)
        for component in ("tranche", "tranche-controller", "tranche-dashboard")
    ]
    nodes = [believed(about_node("default", number)) for number in range(100)]
    blue = [believed(raw("blue", number)) for number in range(20)]
    shown = newest_fairly([*flood, *nodes, *blue], 300)
    assert Counter(each.written_in for each in shown) == {"default": 100, "blue": 20, "red": 180}
    assert set(nodes) | set(blue) <= set(shown)
    # And within a namespace not those of another component.
    (mine,) = {believed(raw("red", 7_000, source={"component": "tranche-controller"}))}
    assert mine in newest_fairly([mine, *(each for each in flood if each.component == "tranche")], 300)


events = st.builds(
    lambda number, node, space, component, at: replace(
        KubeEvent(f"u{number}", "Node" if node else "Pod", space, "x", "R", "m"),
        written_in=space,
        component=component,
        at=float(at),
    ),
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from(["default", "blue", "red", "green"]),
    st.sampled_from(["tranche", "tranche-controller"]),
    st.integers(0, 20),
)


@given(st.lists(events, unique_by=lambda each: each.uid, max_size=60), st.integers(0, 40))
def test_what_is_left_out_is_of_those_who_have_most(found: list[KubeEvent], most: int) -> None:
    shown = newest_fairly(found, most)
    assert len(shown) == min(most, len(found))
    assert [each.at for each in shown] == sorted((each.at for each in shown), reverse=True)
    left = set(found) - set(shown)
    for groups in (
        lambda each: each.kind,
        lambda each: (each.kind, each.written_in),
        lambda each: (each.kind, each.written_in, each.component),
    ):
        whole, kept = Counter(map(groups, found)), Counter(map(groups, shown))
        for name, number in whole.items():
            if kept[name] < number:
                siblings = [each for each in whole if not isinstance(name, tuple) or each[:-1] == name[:-1]]
                assert all(kept[each] <= kept[name] + 1 for each in siblings)
    # Of one writer the newest are kept.
    for each in left:
        same = [
            other
            for other in shown
            if (other.kind, other.written_in, other.component) == (each.kind, each.written_in, each.component)
        ]
        assert all(other.at >= each.at for other in same)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, ["p", "q", "n1"]),
        ({"order": "oldest"}, ["n1", "q", "p"]),
        ({"kind": "Applied"}, ["q"]),
        ({"q": "NODE N1"}, ["n1"]),
    ],
)
def test_events_are_chosen_and_ordered(query: dict[str, str], names: list[str]) -> None:
    events = [
        KubeEvent("1", "Pod", "blue", "p", "Waits", "for a slice"),
        KubeEvent("2", "Pod", "blue", "q", "Applied", "done"),
        KubeEvent("3", "Node", "", "n1", "Waits", "for its turn"),
    ]
    page = cluster_events_page(events, (), True, query)
    made = parsed(whole_page(page, path="/", machine="here", version="a.1", taken=1.0))
    (rows,) = tables(made).values()
    assert [row[2].split("/")[-1].removeprefix("node ") for row in rows] == names
    chosen = [each.get("value") for each in made.iter("option") if each.get("selected") is not None]
    assert chosen == [query.get("kind", ""), query.get("order", "")]
