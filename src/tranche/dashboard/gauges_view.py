"""A GPU's memory use and load over the time that was watched, as charts and as a table, and what is kept for them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean

from tranche.core.quantity import format_memory
from tranche.dashboard.parts import measured, moment, table
from tranche.documents import describe
from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import GaugeSample, sample_of
from tranche.documents.markup import Element, element

EVERY_SECONDS = 5.0
"""The least time between two samples."""
KEPT_SECONDS = 3600.0
LOOK_SECONDS = 60.0
"""The time between looks at the machine while no page is open, where its use is recorded."""
LINE_SECONDS = 300.0
"""The time that one line covers."""
KEPT_DAYS = 7
_WIDTH, _HEIGHT = 1000, 60
Measured = Sequence[tuple[float, float]]
"""Moments in seconds since the epoch, each with a value."""


@dataclass(frozen=True, slots=True)
class UseRecord:
    """What was recorded on earlier days, oldest first; `trouble` says why nothing is recorded now."""

    samples: tuple[GaugeSample, ...] = ()
    trouble: str = ""


NO_RECORD = UseRecord()
"""Nothing was recorded."""


def with_sample(kept: tuple[GaugeSample, ...], taken: float, readings: Iterable[Document]) -> tuple[GaugeSample, ...]:
    """The samples plus one, without those that are too old; starts over after a clock was set back."""
    if kept and 0 <= taken - kept[-1].taken < EVERY_SECONDS:
        return kept
    sample = sample_of(taken, readings)
    young = [each for each in kept if taken - KEPT_SECONDS <= each.taken < taken]
    return (*young, sample) if sample.gpus else tuple(young)


@dataclass(frozen=True, slots=True)
class _Gauge:
    """One gauge's values. `most` is its maximum, 0 where unknown; `said` writes a value with its unit; `every` is in seconds."""

    name: str
    values: Measured
    most: float
    said: Callable[[float], str]
    every: float

    @property
    def numbers(self) -> list[float]:
        return [value for _, value in self.values]


def gauges_view(
    gpu: Document,
    samples: Sequence[GaugeSample],
    every: float,
    note: str,
    window: tuple[float, float] | None = None,
) -> Element | None:
    """Charts of what can be measured of the GPU; None where nothing was.

    Samples come about `every` seconds; a gap three times as long was not watched. The charts cover `window`, else the first to
    the last sample.
    """
    uuid, memory = gpu["uuid"], float(gpu["memoryBytes"] or 0)
    kinds: Sequence[tuple[str, str, float, Callable[[float], str]]] = (
        ("Memory used", "memoryUsedBytes", memory, lambda value: format_memory(round(value))),
        ("Busy", "busy", 1.0, partial(measured, unit="%")),
        ("Power", "powerWatts", 0.0, partial(measured, unit=" W")),
        ("Temperature", "temperatureCelsius", 0.0, partial(measured, unit=" °C")),
    )
    gauges = [_Gauge(name, _measured(uuid, key, samples), most, said, every) for name, key, most, said in kinds]
    found = [each for each in gauges if each.values]
    if not found:
        return None
    since, until = window or (samples[0].taken, samples[-1].taken)
    charts = [element("figure", element("figcaption", _caption(each)), _chart(each, since, until)) for each in found]
    axis = element(
        "p", moment(describe.timestamp(since)), element("span", moment(describe.timestamp(until))), class_="axis muted"
    )
    rows = [(each.name, *(each.said(of(each.numbers)) for of in (_last, min, fmean, max))) for each in found]
    return element(
        "section",
        element("h2", "Use"),
        element("div", element("div", charts, class_="charts"), axis, class_="card"),
        table("Use since then", ("Gauge", "Last", "Least", "Mean", "Most"), rows, ""),
        element("p", note, class_="muted"),
    )


def _caption(gauge: _Gauge) -> str:
    most = f"of {gauge.said(gauge.most)}" if gauge.most else f"up to {gauge.said(max(gauge.numbers))}"
    return f"{gauge.name}, {most}"


def _measured(uuid: str, gauge: str, samples: Sequence[GaugeSample]) -> Measured:
    """Omits moments at which nothing could be measured."""
    found = ((each.taken, each.gpus[uuid].get(gauge)) for each in samples if uuid in each.gpus)
    return [(taken, float(value)) for taken, value in found if value is not None]


def _chart(gauge: _Gauge, since: float, until: float) -> Element:
    length = until - since or gauge.every
    path = "".join(_areas(gauge.values, since, length, gauge.most or max(gauge.numbers) or 1.0, gauge.every))
    last, low, high = (gauge.said(of(gauge.numbers)) for of in (_last, min, max))
    return element(
        "svg",
        element("rect", width=_WIDTH, height=_HEIGHT, class_="tr-free tr-box"),
        element("path", d=path, class_="tr-held tr-box"),
        role="img",
        aria_label=f"{gauge.name}: last {last}, least {low}, most {high}",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width="100%",
        height=_HEIGHT,
        preserveAspectRatio="none",
        class_="chart",
    )


def _areas(values: Measured, since: float, length: float, most: float, every: float) -> Iterator[str]:
    """One area for each stretch of time that was watched."""
    stretch = [values[0]]
    for before, after in pairwise([*values, (float("inf"), 0.0)]):
        if after[0] - before[0] <= 3 * every:
            stretch.append(after)
            continue
        points = [
            (_WIDTH * (taken - since) / length, _HEIGHT * (1 - min(1.0, value / most))) for taken, value in stretch
        ]
        # A single sample is as wide as half the time between two.
        least = _WIDTH * min(1.0, every / length) / 2
        first = min(points[0][0], _WIDTH - least)
        last = max(points[-1][0], first + least)
        line = "".join(f"L{x:.5g} {y:.4g}" for x, y in [(first, points[0][1]), *points[1:], (last, points[-1][1])])
        yield f"M{first:.5g} {_HEIGHT}{line}L{last:.5g} {_HEIGHT}z"
        stretch = [after]


def _last(numbers: Sequence[float]) -> float:
    return numbers[-1]
