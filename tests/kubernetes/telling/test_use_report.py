"""The use of GPUs as a lease tells it: what is kept and for how long, that it fits, and that nothing else is believed."""

from __future__ import annotations

import base64
import gzip
import json
import math
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.telling.garbling import garbled_text
from tranche.core.errors import UsageError
from tranche.core.quantity import GIB
from tranche.documents.gauge_samples import KEPT_GAUGES, GaugeSample
from tranche.kubernetes.telling.packing import unpacked
from tranche.kubernetes.telling.told_view import ViewReport, told_to_lease
from tranche.kubernetes.telling.use_report import (
    KEPT_DAYS,
    LINE_SECONDS,
    LINES_KEPT_HOURS,
    LONG_LINE_SECONDS,
    MOST_USE_BYTES,
    UseReport,
    use_from_text,
    use_to_text,
)

BEGAN = 1_800_000_000.0
UUID = "GPU-1"
READING = {
    "gpuUUID": UUID, "memoryUsedBytes": 3 * GIB, "busy": 0.25, "powerWatts": 61.5, "temperatureCelsius": 40,
    "slices": [
        {"gpuInstanceId": 7, "memoryUsedBytes": GIB, "busy": None, "placement": {"start": 0, "size": 1}}
    ],
}  # fmt: skip


def line(taken: float, busy: float | None = 0.5, uuids: tuple[str, ...] = (UUID,)) -> GaugeSample:
    values = (4 * GIB, busy, 60.0, 40.0)
    return GaugeSample(taken, {uuid: dict(zip(KEPT_GAUGES, values, strict=True)) for uuid in uuids})


def recorded(*busy: float | None, apart: float = LINE_SECONDS) -> UseReport:
    use = UseReport(BEGAN, (READING,))
    for number, each in enumerate(busy):
        use = use.with_line(line(BEGAN + number * apart, each))
    return use


def test_half_an_hour_is_the_mean_of_its_lines_and_the_last_one_is_there_before_it_is_over() -> None:
    use = recorded(0.1, 0.3, None, 0.2, 0.2, 0.2, 0.9, 0.5)
    assert [each.gpus[UUID]["busy"] for each in use.lines] == [0.1, 0.3, None, 0.2, 0.2, 0.2, 0.9, 0.5]
    assert [each.gpus[UUID]["busy"] for each in use.long_lines] == [0.2, 0.7]


def test_what_is_kept_is_bounded() -> None:
    use = recorded(*[0.5] * 5_000)
    until = BEGAN + 4_999 * LINE_SECONDS
    assert len(use.lines) == LINES_KEPT_HOURS * 12 + 1
    assert len(use.long_lines) == KEPT_DAYS * 48 + 1
    for hours, count, every in ((1, 13, LINE_SECONDS), (6, 73, LINE_SECONDS), (24, 49, LONG_LINE_SECONDS)):
        found, length = use.over(hours, until)
        assert (len(found), length) == (count, every)


def test_a_gap_stays_a_gap_and_a_clock_that_was_set_back_begins_again_there() -> None:
    use = recorded(0.5, 0.5, apart=4 * 3600.0).with_line(line(BEGAN + 3600.0))
    assert [each.taken - BEGAN for each in use.lines] == [0.0, 3600.0]
    assert [each.taken - BEGAN for each in use.long_lines] == [0.0, 3600.0]


def test_a_clock_that_was_ahead_once_takes_nothing_away() -> None:
    use = recorded(*[0.5] * 100)
    ahead = use.with_line(line(BEGAN + 30 * 86_400)).with_line(line(BEGAN + 100 * LINE_SECONDS))
    assert len(ahead.lines) >= len(use.lines) - 1
    assert len(ahead.long_lines) >= len(use.long_lines)
    assert [each.taken for each in ahead.lines] == sorted({each.taken for each in ahead.lines})


@given(st.lists(st.none() | st.integers(0, 100), max_size=40))
def test_what_is_written_is_read_again(percent: list[int | None]) -> None:
    use = recorded(*(None if each is None else each / 100 for each in percent))
    if percent:
        use = replace(use, lines=(*use.lines[:-1], line(use.lines[-1].taken, 0.5, (UUID, "GPU-2"))))
    found = use_from_text(use_to_text(use))
    assert found.readings == use.readings
    assert found.lines == use.lines
    assert [each.taken for each in found.long_lines] == [each.taken for each in use.long_lines]


def restless(count: int, noise: float) -> UseReport:
    """Seven days of GPUs whose gauges go up and down, and change with each line."""
    numbers, use = random.Random(1), UseReport(BEGAN, (READING,))

    def of_gpu(at: float) -> dict[str, Any]:
        wave = (1 + math.sin(at)) / 2
        return {
            "memoryUsedBytes": wave * 78 * GIB + noise * numbers.random() * GIB,
            "busy": min(1.0, wave + noise * numbers.random() / 10),
            "powerWatts": 50 + 600 * wave + noise * numbers.uniform(0, 10),
            "temperatureCelsius": 30 + 50 * wave,
        }

    for number in range(KEPT_DAYS * 288):
        gpus = {f"GPU-{gpu:036}": of_gpu(number / 60 + gpu) for gpu in range(count)}
        use = use.with_line(GaugeSample(BEGAN + number * LINE_SECONDS, gpus))
    return use


def test_a_week_of_eight_restless_gpus_fits_and_most_of_one_of_sixteen() -> None:
    for count, share in ((8, 1.0), (16, 0.75)):
        use = restless(count, 1.0)
        text = use_to_text(use)
        found = use_from_text(text)
        assert len(text) <= MOST_USE_BYTES
        assert len(found.long_lines) >= share * len(use.long_lines)
        assert len(found.lines) == len(use.lines)
        assert found.readings == use.readings


def test_what_does_not_fit_is_the_oldest() -> None:
    use = restless(32, 100.0)
    text = use_to_text(use)
    found = use_from_text(text)
    taken = [each.taken for each in found.long_lines]
    assert len(text) <= MOST_USE_BYTES
    assert 0 < len(taken) < len(use.long_lines)
    assert taken == [each.taken for each in use.long_lines][-len(taken) :]


@pytest.mark.parametrize("text", ["", "x", "null", "[]", "[" * 100_000, '{"format": 2}'])
def test_what_is_nothing_of_the_kind_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="GPU use report"):
        use_from_text(packed_text(text))


@given(garbled_text(unpacked(use_to_text(recorded(0.1, None, 0.3)))))
def test_whatever_is_read_can_be_shown(text: str) -> None:
    with suppress(UsageError):
        found = use_from_text(packed_text(text))
        json.dumps(found.readings, allow_nan=False).encode()
        for each in (*found.lines, *found.long_lines):
            json.dumps([each.taken, each.gpus], allow_nan=False).encode()
        assert [each.taken for each in found.lines] == sorted({each.taken for each in found.lines})


@given(st.data())
def test_bytes_that_are_not_as_they_were_written_are_refused_or_read(data: st.DataObject) -> None:
    view = told_to_lease(ViewReport("n1", a100s(1)), ("n1", "u")).annotations["tranche.dev/view"]
    for text, read in ((use_to_text(recorded(0.1, 0.3)), use_from_text), (view, unpacked)):
        content = bytearray(base64.b64decode(text))
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        with suppress(UsageError, ValueError, OSError, EOFError):
            read(base64.b64encode(content).decode())


@pytest.mark.parametrize("item", ["{}", "[]", '""', "0"])
def test_what_is_short_and_would_fill_the_memory_is_refused(item: str) -> None:
    text = packed_text(f"[{','.join([item] * 4_000_000)}]")
    with pytest.raises(ValueError, match="too long"):
        unpacked(text)
    with pytest.raises(UsageError, match="too long"):
        use_from_text(text)


def packed_text(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(errors="surrogatepass"), mtime=0)).decode()
