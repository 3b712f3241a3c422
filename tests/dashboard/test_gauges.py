"""What the gauges said of late: how much of it is kept, and what the charts show."""

from __future__ import annotations

import itertools
from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.reading import parsed, tables
from tests.documents.test_history import GPU, UUID
from tranche.core.quantity import GIB
from tranche.dashboard.gauges_view import EVERY_SECONDS, KEPT_SECONDS, gauges_view, with_sample
from tranche.documents.gauge_samples import GaugeSample

TIMES = st.lists(st.floats(0, 2 * KEPT_SECONDS), max_size=40).map(sorted)


def reading(memory: int | None = GIB, busy: float | None = 0.5) -> dict[str, Any]:
    return {
        "gpuUUID": UUID,
        "memoryUsedBytes": memory,
        "busy": busy,
        "slices": [],
        "powerWatts": None,
        "temperatureCelsius": 40,
    }


def sample(taken: float, memory: int | None = GIB, busy: float | None = None) -> GaugeSample:
    return GaugeSample(taken, {UUID: {"memoryUsedBytes": memory, "busy": busy}})


def shown(*samples: GaugeSample) -> ElementTree.Element:
    view = gauges_view(GPU, samples, EVERY_SECONDS, "")
    assert view is not None
    return parsed(str(view))


@given(TIMES)
def test_samples_are_apart_and_none_is_older_than_what_is_kept(times: list[float]) -> None:
    kept: tuple[GaugeSample, ...] = ()
    for taken in times:
        kept = with_sample(kept, taken, [reading()])
        moments = [each.taken for each in kept]
        assert all(later - earlier >= EVERY_SECONDS for earlier, later in itertools.pairwise(moments))
        assert moments[-1] - moments[0] <= KEPT_SECONDS
        assert taken - moments[-1] < EVERY_SECONDS


def test_a_clock_that_was_set_back_begins_anew() -> None:
    kept = with_sample(with_sample((), 1000.0, [reading()]), 1010.0, [reading()])
    assert [each.taken for each in with_sample(kept, 1005.0, [reading()])] == [1000.0, 1005.0]
    assert [each.taken for each in with_sample(kept, 5.0, [reading()])] == [5.0]
    assert with_sample(kept, 1020.0, []) == kept, "nothing was read"


def test_what_cannot_be_measured_has_no_chart() -> None:
    assert gauges_view(GPU, [], EVERY_SECONDS, "") is None
    assert gauges_view(GPU, [sample(1.0, None)], EVERY_SECONDS, "") is None
    another = GaugeSample(1.0, {"another": {"memoryUsedBytes": 1, "busy": 1.0}})
    assert gauges_view(GPU, [another], EVERY_SECONDS, "") is None
    page = shown(sample(1.0, None, 0.25), sample(6.0, None, 0.75))
    assert tables(page) == {"Use since then": [["Busy", "75%", "25%", "50%", "75%"]]}
    (chart,) = page.iter("svg")
    assert chart.get("aria-label") == "Busy: last 75%, least 25%, most 75%"


def test_the_numbers_are_those_of_the_samples_and_times_that_nobody_saw_are_left_out() -> None:
    page = shown(sample(0.0, GIB), sample(5.0, 3 * GIB), sample(10.0, 2 * GIB), sample(500.0, 10 * GIB))
    assert tables(page)["Use since then"] == [["Memory used", "10 GiB", "1 GiB", "4 GiB", "10 GiB"]]
    (path,) = page.iter("path")
    first, second = path.get("d", "").strip("M").split("M")
    corners = [list(map(float, each.split())) for each in first.rstrip("z").split("L")]
    assert corners[0] == [0, 60]
    assert corners[1:4] == [[0, 58.5], [10, 55.5], [20, 57]], "of 40 GiB and 500 seconds"
    assert second.startswith("995 60")


def test_power_and_temperature_are_kept_and_drawn() -> None:
    kept = with_sample((), 1000.0, [{**reading(None, None), "powerWatts": 100.0}])
    kept = with_sample(kept, 1010.0, [{**reading(None, None), "powerWatts": 300.0, "temperatureCelsius": 60}])
    page = shown(*kept)
    assert tables(page)["Use since then"] == [
        ["Power", "300 W", "100 W", "200 W", "300 W"],
        ["Temperature", "60 °C", "40 °C", "50 °C", "60 °C"],
    ]
    assert [each.text for each in page.iter("figcaption")] == ["Power, up to 300 W", "Temperature, up to 60 °C"]


@given(st.lists(st.tuples(st.floats(0, 3000), st.integers(0, GPU["memoryBytes"])), min_size=1, max_size=20))
def test_the_chart_stays_in_its_box(values: list[tuple[float, int]]) -> None:
    samples = [sample(taken, memory) for taken, memory in sorted(values)]
    (path,) = shown(*samples).iter("path")
    for stretch in path.get("d", "").strip("M").split("M"):
        for corner in stretch.rstrip("z").split("L"):
            x, y = map(float, corner.split())
            assert -0.01 <= x <= 1000.01
            assert -0.01 <= y <= 60.01
