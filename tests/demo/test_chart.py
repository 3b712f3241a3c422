"""The demo's picture: it shows when each job ran, for every machine, and the committed one is what the demo drew."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.demo.test_demo import environment
from tests.demo.test_demo_parts import result_of
from tests.machines import TRANCHE
from tranche.demo.chart import ChartGroup, ChartPicture, JobSpan, chart_of, draw_chart

COMMITTED = Path(__file__).parents[2] / "docs/demo.svg"
SVG = "{http://www.w3.org/2000/svg}"


def chart_in(svg: str) -> ChartPicture:
    """The chart that a picture's metadata hold."""
    metadata = ElementTree.fromstring(svg).find(f"{SVG}metadata")
    assert metadata is not None
    data = json.loads(metadata.text or "")

    def batch(fields: dict[str, Any]) -> ChartGroup:
        return ChartGroup(**{**fields, "runs": tuple(JobSpan(**run) for run in fields["runs"])})

    return ChartPicture(**{**data, "whole": batch(data["whole"]), "slices": batch(data["slices"])})


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def boxes(svg: str, kind: str) -> list[tuple[float, float, float, float]]:
    """x, y, width and height of each box of that kind."""
    paths = [path.get("d", "") for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("class") == kind]
    number = r"(-?[\d.]+)"
    found = re.findall(rf"M{number} {number}h{number}v{number}h-[\d.]+z", "".join(paths))
    return [(float(x), float(y), float(width), float(height)) for x, y, width, height in found]


def test_the_committed_picture_is_drawn_from_its_own_data() -> None:
    svg = COMMITTED.read_text()
    chart = chart_in(svg)
    assert draw_chart(chart) == svg
    assert (chart.machine, chart.simulated, chart.gpus, chart.profile) == ("p4d.24xlarge", True, 8, "1g.5gb")
    assert (len(chart.whole.runs), chart.whole.at_once) == (56, 8)
    assert (len(chart.slices.runs), chart.slices.at_once) == (56, 56)
    assert len(svg) < 30_000


def test_the_demos_page_shows_the_picture_with_its_figures() -> None:
    page = (COMMITTED.parent / "guides/getting-started.md").read_text()
    chart = chart_in(COMMITTED.read_text())
    (alternative,) = re.findall(r"!\[([^\]]*)\]\(\.\./demo\.svg\)", page)
    for batch in (chart.whole, chart.slices):
        minutes, seconds = divmod(int(batch.seconds), 60)
        assert f"{minutes} min {seconds} s" in alternative
        assert f"{batch.at_once} " in alternative


def test_a_picture_shows_each_job_in_its_gpus_row() -> None:
    chart = chart_of(result_of(slice_granted=1.0), "2 x A <&> B", simulated=False)
    svg = draw_chart(chart)
    assert chart.whole.seconds == 22.0
    assert [(run.gpu, run.began, run.ended) for run in chart.whole.runs] == [
        (0, 1.0, 11.0),
        (0, 12.0, 22.0),
        (1, 1.0, 11.0),
        (1, 12.0, 22.0),
    ]
    first, later, *other_gpu = boxes(svg, "whole")
    assert first[1] == later[1]
    assert first[0] + first[2] <= later[0]
    assert {y for _, y, _, _ in other_gpu} == {first[1] + 23}
    assert len(boxes(svg, "slice")) == 4
    assert len(boxes(svg, "cut")) == 2
    assert "The same 4 jobs, 1.10 times as fast in slices" in texts(svg)
    assert "Slices of 1g.5gb4 jobs at a time, done after 0:20" in texts(svg)
    assert "tranche demo on 2 x A <&> B with jobs that only sleep, at 10 times real speed" in texts(svg)


@st.composite
def charts(draw: st.DrawFn) -> ChartPicture:
    gpus = draw(st.integers(1, 8))

    def batch(lanes: int, cutting: float) -> ChartGroup:
        spots = [(gpu, lane) for gpu in range(gpus) for lane in range(lanes)]
        times = st.floats(0.1, 20_000).map(lambda seconds: round(seconds, 1))
        return ChartGroup(
            lanes, lanes, cutting, tuple(JobSpan(*spot, cutting, cutting + draw(times)) for spot in spots)
        )

    cutting = round(draw(st.floats(0, 100)), 1)
    return ChartPicture(
        "m", draw(st.booleans()), 15.0, gpus, "1g.5gb", batch(1, 0.0), batch(draw(st.integers(1, 7)), cutting)
    )


@given(charts())
def test_a_picture_holds_its_chart_and_draws_nothing_outside(chart: ChartPicture) -> None:
    svg = draw_chart(chart)
    assert draw_chart(chart_in(svg)) == svg
    tree = ElementTree.fromstring(svg)
    width, height = (float(each) for each in tree.get("viewBox", "").split()[2:])
    drawn = [box for kind in ("whole", "slice", "cut") for box in boxes(svg, kind)]
    assert len(drawn) == len(chart.whole.runs) + len(chart.slices.runs) + (chart.gpus if chart.slices.cutting else 0)
    assert all(x >= 0 and x + wide <= width and y >= 0 and y + high <= height for x, y, wide, high in drawn)
    lines = [each for each in tree.iter(f"{SVG}path") if each.get("class") == "line"]
    assert 1 <= len(lines) <= 7


def test_a_picture_has_a_text_alternative_and_needs_nothing_else() -> None:
    svg = draw_chart(chart_of(result_of(slice_granted=1.0), "p4d.24xlarge", simulated=True))
    tree = ElementTree.fromstring(svg)
    named = {each.get("id") for each in tree if each.get("id")}
    assert tree.get("role") == "img"
    assert set((tree.get("aria-labelledby") or "").split()) == named == {"t", "d"}
    assert "prefers-color-scheme:dark" in svg
    assert not re.search(r"url\(|@import|href|<script|http(?!://www\.w3\.org/2000/svg)", svg)


@pytest.mark.parametrize("name", ["no-such-folder/demo.svg", ".", "-"])
def test_a_picture_that_cannot_be_written_is_refused_before_the_demo_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*TRANCHE, "demo", "--picture", name],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (f"error: cannot write a picture to {name!r}\n\nhint: give a file in an existing folder\n")
    assert list(tmp_path.iterdir()) == []
