"""The use of GPUs over days, in a file: what is kept, through restarts and all that may be in its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.reading import parsed, tables
from tests.dashboard.served import Dashboards
from tests.documents.test_history import UUID
from tests.machines import TestMachine
from tranche.dashboard.gauges_view import KEPT_DAYS, LINE_SECONDS, LOOK_SECONDS
from tranche.dashboard.watch import UseFile
from tranche.documents.gauge_samples import GaugeSample

BEGAN = 1_800_000_000.0


def reading(busy: float | None, uuid: str = UUID) -> dict[str, Any]:
    return {"gpuUUID": uuid, "memoryUsedBytes": 2**30, "busy": busy, "powerWatts": None, "temperatureCelsius": 40}


def line(taken: float, busy: float = 0.5) -> str:
    gauges = {"memoryUsedBytes": 1, "busy": busy, "powerWatts": None, "temperatureCelsius": 40}
    return json.dumps({"taken": taken, "gpus": {UUID: gauges}})


def busy_of(samples: tuple[GaugeSample, ...]) -> list[tuple[float, float | None]]:
    return [(each.taken - BEGAN, each.gpus[UUID]["busy"]) for each in samples]


def test_it_keeps_the_mean_of_each_five_minutes_through_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new" / "use"
    first = UseFile(path)
    for minute, busy in enumerate([1.0, 0.2, None, 0.4, 0.6, 0.8, 0.0]):
        first.take(BEGAN + minute * LOOK_SECONDS, [reading(busy)])
    assert busy_of(first.samples) == [(0.0, 1.0), (300.0, 0.5)]
    assert busy_of(UseFile(path).samples) == busy_of(first.samples)
    assert path.stat().st_mode & 0o077 == 0
    again = UseFile(path)
    again.take(BEGAN + 400, [reading(0.9)])
    again.take(BEGAN + 4000, [reading(0.7)])
    assert busy_of(UseFile(path).samples)[2:] == [(4000.0, 0.8)], "nobody looked in between"
    assert again.trouble == ""


def test_it_is_bounded(tmp_path: Path) -> None:
    path, lines = tmp_path / "use", 3 * KEPT_DAYS * 86_400 / LINE_SECONDS
    path.write_text("".join(f"{line(BEGAN + n * LINE_SECONDS)}\n" for n in range(round(lines))))
    file = UseFile(path)
    file.take(BEGAN + lines * LINE_SECONDS, [reading(0.5)])
    written = [each for each in path.read_text().splitlines() if each]
    assert len(file.samples) == len(written) == KEPT_DAYS * 288 + 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_clock_that_was_set_back_begins_anew(tmp_path: Path) -> None:
    file = UseFile(tmp_path / "use")
    for taken in (0.0, 9000.0, 4000.0):
        file.take(BEGAN + taken, [reading(0.5)])
    assert busy_of(UseFile(tmp_path / "use").samples) == busy_of(file.samples) == [(0.0, 0.5), (4000.0, 0.5)]


@pytest.mark.parametrize(
    "other",
    [
        "",
        "\0",
        '{"taken": 1, "gp',
        "[]",
        '{"taken": "1", "gpus": {}}',
        '{"taken": NaN, "gpus": {}}',
        '{"taken": 2e9, "gpus": {"a": {"busy": []}}}',
        "[" * 100_000,
    ],
)
def test_what_is_none_of_its_lines_is_left_out(tmp_path: Path, other: str) -> None:
    path = tmp_path / "use"
    path.write_text(f"{line(BEGAN)}\n{other}")
    file = UseFile(path)
    file.take(BEGAN + LINE_SECONDS, [reading(0.25)])
    assert busy_of(UseFile(path).samples) == [(0.0, 0.5), (300.0, 0.25)]


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_cannot_be_written_is_said_and_is_known_until_the_server_ends(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "use", tmp_path / "other"
    other.write_text("theirs")
    if kind == "link":
        path.symlink_to(other)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    file = UseFile(path)
    file.take(BEGAN, [reading(0.5)])
    assert f"{path} cannot be written" in file.trouble
    assert busy_of(file.samples) == [(0.0, 0.5)]
    assert other.read_text() == "theirs"


def test_a_server_writes_down_what_another_one_shows(machine: TestMachine, dashboards: Dashboards) -> None:
    uuid = machine.json("gpus")["gpus"][0]["uuid"]
    first = dashboards.start()
    before = tables(parsed(first.ask(f"/gpus/{uuid}?hours=24").text))["Use since then"]
    first.process.kill()
    first.process.wait()
    path = machine.folder / "xdg/tranche/gpu-use"
    (written,) = path.read_text().split("\n")[1:-1]
    assert json.loads(written)["gpus"][uuid]["powerWatts"] > 0
    assert "Power" in {row[0] for row in before}
    again = dashboards.start().ask(f"/gpus/{uuid}?hours=24").text
    assert tables(parsed(again))["Use since then"] == before
    assert path.read_text().count("taken") == 1, "five minutes are not over"
