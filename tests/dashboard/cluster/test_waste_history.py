"""What namespaces hold without using it: added up as the snapshots say, for a day, and told to whom it may be told."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from bench.simulated_cluster import NAMESPACES, SimulatedCluster
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.reading import parsed, tables, text_of
from tests.documents.test_picture import documents_of, every_kind
from tests.strategies import sharing_views
from tranche.core.allocation import NodeView
from tranche.dashboard.cluster.cluster_waste import (
    SLOT_SECONDS,
    SLOTS,
    WasteHistory,
    WasteReport,
    cluster_waste_page,
    waste_data,
)
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, NameVisibility, SeenNode
from tranche.dashboard.cluster.user_view import ViewerPermission
from tranche.documents.waste import held_now

ALL = NameVisibility(everywhere=True)
OURS = NameVisibility(frozenset({"vision"}))


def held_by_space(seen: ClusterSnapshot) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in seen.nodes.values():
        if not node.trouble:
            spaces = node.namespaces
            for each in held_now(node.overview["gpus"], node.overview["allocations"]):
                found[spaces[each.allocation_id]] += each.memory
    return found


def reported(book: WasteHistory) -> WasteReport:
    report = book.report()
    assert report is not None
    return report


@given(st.integers(0, 1000), st.lists(st.tuples(st.floats(0.1, 5000), st.booleans(), st.booleans()), max_size=8))
def test_what_is_added_up_is_what_was_held_times_how_long(seed: int, turns: list[tuple[float, bool, bool]]) -> None:
    cluster, book = SimulatedCluster(3, seed), WasteHistory()
    seen, now = cluster.snapshot(10.0), 10.0
    book.take(seen)
    total: Counter[str] = Counter()
    for seconds, silent, gone in turns:
        now += seconds
        total.update({name: held * seconds for name, held in held_by_space(seen).items()})
        changed = [replace(each, trouble="silent" if silent else "") for each in cluster.changes(5, now)]
        seen = seen.after(changed, now, gone=["node-0001"] if gone else [])
        book.take(seen)
    report = reported(book)
    assert {name: use.held for name, use in report.spaces.items() if use.held} == +held_by_space(seen)
    for name, use in report.spaces.items():
        assert use.held_seconds == pytest.approx(total[name], rel=1e-6)
        assert use.unused_seconds == use.held_seconds, "no process is in any"
    assert report.unheard == sum(bool(each.trouble) for each in seen.nodes.values())
    assert (report.since, report.until) == (10.0, now)


def test_a_day_is_kept() -> None:
    seen, book = SimulatedCluster(1, idle=0.0).snapshot(0.0), WasteHistory()
    for turn in range(3 * SLOTS):
        book.take(seen := seen.after([], SLOT_SECONDS * turn))
    report = reported(book)
    assert report.until - report.since <= SLOT_SECONDS * SLOTS
    held = sum(use.held for use in report.spaces.values())
    assert sum(use.held_seconds for use in report.spaces.values()) == pytest.approx(
        held * SLOT_SECONDS * SLOTS, rel=0.02
    )


def test_a_clock_that_is_set_back_adds_nothing() -> None:
    seen, book = SimulatedCluster(1).snapshot(1000.0), WasteHistory()
    assert book.report() is None
    book.take(seen)
    book.take(seen.after([], 10.0))
    assert all(use.held_seconds == 0 for use in reported(book).spaces.values())


@given(sharing_views(max_gpus=3))
def test_what_shares_have_is_never_more_than_there_is(view: NodeView) -> None:
    gpus, allocations = documents_of(view)
    for gpu in gpus:
        found = [each for each in held_now([gpu], allocations) if each.gpu is gpu]
        assert sum(each.memory for each in found) <= gpu["memoryBytes"]
        assert all(each.memory >= 0 for each in found)


def test_a_share_is_used_while_a_process_is_in_its_device() -> None:
    view = every_kind()
    gpus, allocations = documents_of(view)
    before = {each.allocation_id: each.used for each in held_now(gpus, allocations)}
    assert not any(before.values())
    gpus[2]["processes"] = [{"pid": 1, "name": "x", "memoryBytes": None}]
    after = {each.allocation_id: each.used for each in held_now(gpus, allocations)}
    assert {id for id, used in after.items() if used} == {"55555555"}


def test_names_and_amounts_are_told_to_whom_they_may_be_told() -> None:
    cluster, book = SimulatedCluster(2), WasteHistory()
    seen = cluster.snapshot(0.0)
    book.take(seen)
    book.take(seen := seen.after([], 3600.0))
    report = reported(book)
    every = waste_data(report, ALL, others=True)
    assert {each["namespace"] for each in every["namespaces"]} == set(NAMESPACES)
    mine = waste_data(report, OURS, others=True)
    assert [each["namespace"] for each in mine["namespaces"]] == ["vision", None]
    assert sum(each["heldBytes"] for each in mine["namespaces"]) == sum(
        each["heldBytes"] for each in every["namespaces"]
    )
    narrow = waste_data(report, OURS, others=False)
    assert [each["namespace"] for each in narrow["namespaces"]] == ["vision"]
    assert narrow["unheardNodes"] is None
    rights = ViewerPermission(OURS, all_nodes=True)
    shown = [each for node in seen.nodes.values() if (each := rights.shown(node)) is not None]
    page = parsed(str(cluster_waste_page(mine, ClusterSnapshot().after(shown, 3600.0), OURS).live))
    for other in set(NAMESPACES) - {"vision"}:
        assert other not in text_of(page)
        assert other not in json.dumps(mine)
    rows = tables(page)["By namespace, most unused first"]
    (first, second) = rows
    assert (first[0], first[3], second[0]) == ("vision", "100%", "other namespaces")
    assert all("vision/" in row[2] for row in tables(page)["Held, but without a running process; largest first"])


def test_before_anything_was_seen_it_says_so() -> None:
    page = cluster_waste_page(None, ClusterSnapshot(notes=("nodes may not be read",)), ALL)
    assert "No data yet." in text_of(parsed(str(page.live)))
    silent = ClusterSnapshot().after([SeenNode("a", trouble="silent")], 1.0)
    book = WasteHistory()
    book.take(silent)
    waste = waste_data(reported(book), ALL, others=True)
    assert "Nodes without a current report are not counted: 1." in text_of(
        parsed(str(cluster_waste_page(waste, silent, ALL).live))
    )
