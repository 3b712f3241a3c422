"""One GPU that the driver has lost: the others are cut all the same, and what is missing is said."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable

import pytest

from tests.layout.conftest import Bench, cut_of
from tests.layout.test_apply import MakeBench, names

HARDWARE_ERROR, MISMATCH = 21, 50
UNKNOWN, RESET_REQUIRED = 999, 16
OTHERS = [0, 1, 2, 4, 5, 6, 7]


def lose(b: Bench) -> None:
    b.machine.inject_lost(3)


def unknown_error(b: Bench) -> None:
    b.machine.inject_error("nvmlDeviceGetHandleByIndex_v2", UNKNOWN, calls=1_000, gpu=3)


def reset_required(b: Bench) -> None:
    b.machine.inject_error("nvmlDeviceGetMigMode", RESET_REQUIRED, calls=1_000, gpu=3)


@pytest.fixture(params=[lose, unknown_error, reset_required])
def losing(request: pytest.FixtureRequest) -> Callable[[Bench], None]:
    way: Callable[[Bench], None] = request.param
    return way


def slices(b: Bench, index: int) -> Counter[str]:
    return names(cut_of(b.observe().gpus[index]))


@pytest.mark.parametrize(
    ("machine", "layout", "slice_name"),
    [("p4d.24xlarge", "all-1g.5gb", "1g.5gb"), ("p5.48xlarge", "all-1g.10gb", "1g.10gb")],
)
def test_a_layout_is_applied_to_the_other_seven(
    bench: MakeBench, losing: Callable[[Bench], None], machine: str, layout: str, slice_name: str
) -> None:
    b = bench(machine)
    losing(b)
    outcome = b.layout("apply", "-c", layout, "-o", "json")
    assert outcome.code == HARDWARE_ERROR
    assert "GPU 3" in outcome.stderr
    assert "all other GPUs match the layout" in outcome.stderr
    assert "applied successfully" not in outcome.stderr
    assert [gpu["index"] for gpu in outcome.data["gpus"]] == OTHERS
    assert [lost.split(" (")[0] for lost in outcome.data["lost"]] == ["GPU 3"]
    assert [slices(b, index) for index in OTHERS] == [Counter({slice_name: 7})] * 7
    assert b.layout("assert", "-c", layout).code == MISMATCH

    calls = b.machine.total_change_calls()
    again = b.layout("apply", "-c", layout)
    assert again.code == HARDWARE_ERROR
    assert "nothing to do: the reachable GPUs already match the layout" in again.stderr
    assert b.machine.total_change_calls() == calls

    b.machine.clear_injections()
    b.apply("-c", layout)
    assert slices(b, 3) == Counter({slice_name: 7})


def test_a_plan_is_for_the_others_and_says_so(bench: MakeBench) -> None:
    b = bench("p5.48xlarge")
    lose(b)
    planned = b.layout("plan", "-c", "all-1g.10gb", "-o", "json")
    assert planned.code == HARDWARE_ERROR
    assert "GPU 3 is lost: the driver cannot reach it; the plan covers the other GPUs" in planned.stderr
    assert b.layout("apply", "--plan", "-", stdin=json.dumps(planned.data)).code == 0
    assert [slices(b, index) for index in OTHERS] == [Counter({"1g.10gb": 7})] * 7


def test_a_checkpoint_is_restored_on_the_others(bench: MakeBench) -> None:
    b = bench("p5.48xlarge")
    b.apply("-c", "all-balanced")
    before = [slices(b, index) for index in OTHERS]
    path = str(b.folder / "checkpoint.json")
    assert b.layout("checkpoint", "-f", path).code == 0
    b.apply("-c", "all-1g.10gb")
    lose(b)
    outcome = b.layout("restore", "-f", path)
    assert outcome.code == HARDWARE_ERROR
    assert re.search(r"GPU 3 \(GPU-[^)]*\) is lost", outcome.stderr)
    assert [slices(b, index) for index in OTHERS] == before
    b.machine.clear_injections()
    assert b.layout("restore", "-f", path).code == 0


def test_when_every_gpu_that_is_named_is_lost_nothing_is_done(bench: MakeBench) -> None:
    b = bench("p5.48xlarge")
    lose(b)
    path = b.file("version: v1\nmig-configs: {x: [{devices: [3], mig-enabled: true, mig-devices: {1g.10gb: 7}}]}\n")
    calls = b.machine.total_change_calls()
    outcome = b.layout("apply", "-f", path)
    assert outcome.code == HARDWARE_ERROR
    assert "GPU 3 is lost: the driver cannot reach it\n" in outcome.stderr
    assert b.machine.total_change_calls() == calls


def test_where_every_gpu_is_lost_the_layout_says_which(bench: MakeBench) -> None:
    b = bench("p4d.24xlarge")
    for index in range(8):
        b.machine.inject_lost(index)
    for command in ("apply", "plan"):
        refused = b.layout(command, "-c", "all-1g.5gb")
        assert refused.code == HARDWARE_ERROR
        assert re.search(r"GPU 0.*, GPU 7.* are lost: the driver cannot reach them", refused.stderr)
