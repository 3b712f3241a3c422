"""How much memory of a GPU was used: what agents told and nothing else, no older than an hour, and bounded."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.cluster.test_cluster_history import ALL, ONE, seen
from tests.dashboard.reading import parsed, tables, text_of
from tranche.core.quantity import GIB
from tranche.dashboard.cluster.cluster_history import GpuHistory, UnreportedSpan
from tranche.dashboard.cluster.cluster_history_view import past_view
from tranche.dashboard.cluster.memory_history import APART_SECONDS, TOLD_SECONDS, MemoryHistory
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode
from tranche.dashboard.gauges_view import gauges_view
from tranche.dashboard.reading_log import KEPT_SECONDS

UUID = "GPU-1"


def told(at: float, used: int | None, trouble: str = "", **fields: Any) -> SeenNode:
    """A node whose GPU of 40 GiB has so many bytes in use; None is not known."""
    gpu = {
        "uuid": UUID,
        "lost": False,
        "memoryBytes": 40 * GIB,
        "memoryFreeBytes": None if used is None else 40 * GIB - used,
    }
    return SeenNode(
        "n1", overview={"gpus": [{**gpu, **fields}], "allocations": [], "waiters": []}, seen=at, trouble=trouble
    )


def taken(*nodes: SeenNode) -> MemoryHistory:
    book, snapshot = MemoryHistory(), ClusterSnapshot()
    for node in nodes:
        snapshot = snapshot.after([node], node.seen or 0.0)
        book.take(snapshot)
    return book


def values(book: MemoryHistory, until: float, *silences: UnreportedSpan) -> list[tuple[float, int]]:
    return [(each.taken, each.gpus[UUID]["memoryUsedBytes"]) for each in book.samples("n1", UUID, until, silences)]


@given(st.lists(st.tuples(st.floats(1, 900), st.integers(0, 3)), min_size=1, max_size=60))
def test_at_every_moment_it_is_about_what_was_told_last_and_the_last_word_counts(
    turns: list[tuple[float, int]],
) -> None:
    now, words = 1e9, []
    for seconds, used in turns:
        now += seconds
        words.append((now, used * GIB))
    book = taken(*(told(at, used) for at, used in words))
    found = values(book, now + 1)
    assert found[-1][1] == words[-1][1]
    assert found == sorted(found, key=lambda each: each[0])
    assert all(now + 1 - at <= KEPT_SECONDS for at, _ in found)
    assert len(found) <= 2 * KEPT_SECONDS / APART_SECONDS + KEPT_SECONDS / TOLD_SECONDS + 3
    for at, used in found:
        near = {word for when, word in words if at - APART_SECONDS - 0.001 <= when <= at + APART_SECONDS}
        last = [word for when, word in words if when <= at]
        assert used in near | set(last[-1:])


def test_what_stays_as_it_is_stays_though_nothing_is_told_of_it() -> None:
    book = taken(told(1000.0, GIB))
    found = values(book, 1000.0 + KEPT_SECONDS)
    assert {used for _, used in found} == {GIB}
    assert len(found) == KEPT_SECONDS / TOLD_SECONDS + 1


def test_what_was_not_heard_or_cannot_be_known_has_no_value() -> None:
    book = taken(told(0.0, GIB), told(100.0, None), told(200.0, 2 * GIB), told(300.0, GIB, lost=True), told(400.0, GIB))
    moments = [at for at, _ in values(book, 500.0)]
    assert moments
    assert not any(100 <= at < 200 or 300 <= at < 400 for at in moments)
    heard = [at for at, _ in values(book, 500.0, UnreportedSpan(10.0, 90.0), UnreportedSpan(410.0, None))]
    assert not any(10 < at < 90 or at > 410 for at in heard)
    assert values(taken(told(0.0, GIB, "silent")), 10.0) == []


def test_a_clock_that_was_set_back_begins_anew_and_a_node_that_has_gone_is_forgotten() -> None:
    book = taken(told(10_000.0, GIB), told(100.0, 2 * GIB))
    assert {used for _, used in values(book, 110.0)} == {2 * GIB}
    snapshot = ClusterSnapshot().after([told(10.0, GIB)], 10.0)
    book = MemoryHistory()
    book.take(snapshot)
    book.take(snapshot.after([], 20.0, gone=["n1"]))
    assert values(book, 30.0) == []


def test_the_chart_is_on_the_page_of_the_gpu_and_says_what_it_is() -> None:
    book = taken(told(1000.0, GIB), told(1100.0, 3 * GIB))
    node = seen(ONE, 1100.0)
    gpu = {**node.overview["gpus"][0], "memoryBytes": 40 * GIB}
    used = book.samples("n1", UUID, 1200.0, ())
    shown = parsed(str(past_view(node, gpu, GpuHistory(1000.0, (), {}, ()), ALL, 1200.0, 1, used)))
    assert tables(shown)["Use since then"] == [["Memory used", "3 GiB", "1 GiB", "2 GiB", "3 GiB"]]
    assert "How busy a GPU is they do not tell" in text_of(shown)
    assert "while a page is open" not in text_of(shown)


def test_the_chart_of_a_few_seconds_is_as_wide_as_its_axis() -> None:
    book = taken(told(1000.0, GIB), told(1006.0, GIB))
    gpu = {**seen(ONE, 0.0).overview["gpus"][0], "memoryBytes": 40 * GIB}
    view = gauges_view(gpu, book.samples("n1", UUID, 1006.0, ()), TOLD_SECONDS)
    assert view is not None
    (path,) = parsed(str(view)).iter("path")
    assert path.get("d", "").endswith("L1000 60z")
