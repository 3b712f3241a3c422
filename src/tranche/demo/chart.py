"""The demo's picture of itself: when each job ran, on whole GPUs and in slices, as an SVG that needs no fonts and no scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from xml.sax.saxutils import escape

from tranche.demo.jobs import BatchResult, DemoResult, JobRecord
from tranche.demo.scene import clock_face

_WIDTH, _MARGIN, _LABELS = 720, 24, 56
_ROW, _ROW_GAP, _LANE_GAP = 20.0, 3.0, 0.8
_TITLE, _HEADER, _AXIS, _FOOTER = 60, 42, 28, 58
_PANEL_GAP = 16
_PLOT = _WIDTH - 2 * _MARGIN - _LABELS
_BETWEEN_JOBS = 1.5
_MOST_LINES = 6
_LINE_SECONDS = (5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)

_STYLE = """\
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:18px;fill:#1f2328}
.title{font-size:25px;font-weight:600}.name{font-weight:600}.small{font-size:14px;fill:#59636e}.end{text-anchor:middle}
.card{fill:#ffffff;stroke:#d1d9e0}.line{stroke:#d1d9e0}.done{stroke:#1f2328;stroke-width:2}
.whole{fill:#0969da}.slice{fill:#1a7f37}.cut{fill:#d4a72c}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.card{fill:#0d1117;stroke:#3d444d}
.line{stroke:#3d444d}.done{stroke:#f0f6fc}.whole{fill:#58a6ff}.slice{fill:#3fb950}.cut{fill:#e3b341}}"""


@dataclass(frozen=True, slots=True)
class JobSpan:
    """When a job ran, in seconds since its batch began, on which GPU, and in which of the GPU's `lanes`, counted from 0."""

    gpu: int
    lane: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """One batch: `lanes` jobs have room on each GPU, `cutting` seconds passed before the first request."""

    lanes: int
    at_once: int
    cutting: float
    runs: tuple[JobSpan, ...]

    @property
    def seconds(self) -> float:
        """From the batch's beginning to the end of its last job."""
        return max(run.ended for run in self.runs)


@dataclass(frozen=True, slots=True)
class ChartPicture:
    """All that the picture shows; times in seconds of the demo's clock, to a hundredth."""

    machine: str
    simulated: bool
    speed: float
    gpus: int
    profile: str
    whole: ChartGroup
    slices: ChartGroup


def chart_of(result: DemoResult, machine: str, simulated: bool) -> ChartPicture:
    """The chart of what the demo measured."""
    positions = {gpu.uuid: position for position, gpu in enumerate(result.gpus)}
    return ChartPicture(
        machine,
        simulated,
        result.speed,
        len(result.gpus),
        str(result.profile),
        _batch(result.whole, positions),
        _batch(result.slices, positions),
    )


def draw_chart(chart: ChartPicture) -> str:
    """The picture as an SVG document with a text alternative. Its metadata hold the chart as JSON, so it can be drawn again."""
    jobs = len(chart.whole.runs)
    ratio = f"{chart.whole.seconds / chart.slices.seconds:.2f}"
    panel = chart.gpus * (_ROW + _ROW_GAP)
    first = _TITLE + _HEADER
    second = first + panel + _PANEL_GAP + _HEADER
    bottom = second + panel
    height = bottom + _AXIS + _FOOTER
    scale = _PLOT / max(chart.whole.seconds, chart.slices.seconds)
    title = f"The same {jobs} jobs, {ratio} times as fast in slices"
    whole = f"{chart.whole.at_once} jobs at a time, done after {clock_face(chart.whole.seconds)}"
    slices = f"{chart.slices.at_once} jobs at a time, done after {clock_face(chart.slices.seconds)}"
    description = (
        f"On {chart.gpus} whole GPUs: {whole}. In slices of {chart.profile}: {slices}, "
        f"{chart.slices.cutting:.1f} seconds of that for partitioning the GPUs. Made by {_conditions(chart)}."
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(title)}</title>',
        f'<desc id="d">{escape(description)}</desc>',
        f"<metadata>{escape(json.dumps(asdict(chart), separators=(',', ':')))}</metadata>",
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1:g}" rx="12"/>',
        f'<text class="title" x="{_MARGIN}" y="44">{escape(title)}</text>',
        *_grid(scale, (first, second), panel),
        *_panel(chart.whole, "whole", f"{chart.gpus} whole GPUs", whole, first, scale, chart.gpus),
        *_panel(chart.slices, "slice", f"Slices of {chart.profile}", slices, second, scale, chart.gpus),
        *_legend(chart, bottom + _AXIS + 20),
        "</svg>\n",
    ]
    return "\n".join(lines)


def _batch(batch: BatchResult, positions: dict[str, int]) -> ChartGroup:
    spots = sorted({_spot(record) for record in batch.records})
    runs = (
        JobSpan(
            positions[record.grants[0].gpu_uuid],
            spots.index(_spot(record)),
            round(record.granted - batch.began, 2),
            round(record.ended - batch.began, 2),
        )
        for record in batch.records
    )
    return ChartGroup(
        len(spots),
        batch.at_once,
        round(batch.cutting, 2),
        tuple(sorted(runs, key=lambda run: (run.gpu, run.lane, run.began))),
    )


def _spot(record: JobRecord) -> int:
    slot = record.grants[0].slot
    return 0 if slot is None else slot.placement.start


def _x(seconds: float, scale: float) -> float:
    return _MARGIN + _LABELS + seconds * scale


def _grid(scale: float, tops: Sequence[float], panel: float) -> Iterator[str]:
    """In each panel, lines at full minutes or at a spacing that gives a handful; their times below the last one."""
    most = _PLOT / scale
    step = next((each for each in _LINE_SECONDS if most / each <= _MOST_LINES), _LINE_SECONDS[-1])
    for seconds in range(0, int(most) + 1, step):
        x = _x(seconds, scale)
        drawn = "".join(f"M{x:.1f} {top:g}v{panel:g}" for top in tops)
        yield f'<path class="line" d="{drawn}"/>'
        yield f'<text class="small end" x="{x:.1f}" y="{tops[-1] + panel + 20:g}">{clock_face(seconds)}</text>'


def _panel(batch: ChartGroup, kind: str, name: str, said: str, top: float, scale: float, gpus: int) -> Iterator[str]:
    yield (
        f'<text x="{_MARGIN}" y="{top - 14:g}"><tspan class="name">{escape(name)}</tspan>'
        f'<tspan dx="14">{said}</tspan></text>'
    )
    rows = [top + gpu * (_ROW + _ROW_GAP) for gpu in range(gpus)]
    for gpu, y in enumerate(rows):
        yield f'<text class="small" x="{_MARGIN}" y="{y + 15:g}">GPU {gpu}</text>'
    if batch.cutting:
        yield f'<path class="cut" d="{"".join(_box(0, batch.cutting, y, _ROW, scale) for y in rows)}"/>'
    lane = (_ROW + _LANE_GAP) / batch.lanes
    boxes = (_box(run.began, run.ended, rows[run.gpu] + run.lane * lane, lane - _LANE_GAP, scale) for run in batch.runs)
    yield f'<path class="{kind}" d="{"".join(boxes)}"/>'
    end = _x(batch.seconds, scale)
    yield f'<path class="done" d="M{end:.1f} {top - 4:g}V{rows[-1] + _ROW + 2:g}"/>'


def _box(began: float, ended: float, y: float, height: float, scale: float) -> str:
    width = max(0.5, (ended - began) * scale - _BETWEEN_JOBS)
    return f"M{_x(began, scale):.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def _legend(chart: ChartPicture, y: float) -> Iterator[str]:
    entries: Sequence[tuple[str, int, str]] = (
        ("whole", 0, "a job on a GPU"),
        ("slice", 148, "a job in a slice"),
        ("cut", 296, f"partitioning the GPUs, {chart.slices.cutting:.1f} s"),
    )
    for kind, x, said in entries:
        yield f'<rect class="{kind}" x="{_MARGIN + x}" y="{y - 11:g}" width="12" height="12" rx="2"/>'
        yield f'<text class="small" x="{_MARGIN + x + 18}" y="{y:g}">{said}</text>'
    yield f'<text class="small" x="{_MARGIN}" y="{y + 24:g}">{escape(_conditions(chart))}</text>'


def _conditions(chart: ChartPicture) -> str:
    speed = f"at {chart.speed:g} times real speed"
    if chart.simulated:
        return f"tranche demo on a simulated {chart.machine} with fixed job durations, {speed}"
    return f"tranche demo on {chart.machine} with jobs that only sleep, {speed}"
