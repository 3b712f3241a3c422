"""The parts of the demo that need no machine: its schedule, clock, scene and figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.conftest import Golden
from tests.strategies import FAMILY_BOARDS, gpu_on
from tranche.cli.demo import draw, print_result
from tranche.core.allocation import Slice, WholeGpu
from tranche.core.board import Board, board_by_key
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import GpuState, MigMode
from tranche.demo.jobs import BatchResult, DemoResult, JobRecord
from tranche.demo.machine import mig_boards
from tranche.demo.scene import BlockState, DemoClock, DemoTracker, clock_face
from tranche.demo.schedule import Job, ideal_seconds, mixed_batch, slice_batch, whole_gpu_batch
from tranche.planning.decide.candidates import Candidate, candidate, plain_profiles
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode

ONE, TWO = parse_profile("1g.5gb"), parse_profile("2g.10gb")


class HandClock:
    """A monotonic clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def a100(index: int, mode: MigMode = MigMode.ENABLED) -> GpuState:
    board = board_by_key("A100-40GB")
    assert board is not None
    return gpu_on(board, index, mode=mode)


def test_the_jobs_alone_give_the_published_ratio() -> None:
    whole, slices = whole_gpu_batch(56, ""), slice_batch(56, ONE, "")
    assert ideal_seconds(whole, 8) == pytest.approx(240.1)
    assert ideal_seconds(slices, 56) == 87.0
    assert round(ideal_seconds(whole, 8) / ideal_seconds(slices, 56), 2) == 2.76


@given(st.integers(1, 100), st.integers(1, 20))
def test_a_batch_lasts_as_long_as_the_busiest_place(jobs: int, places: int) -> None:
    busiest = max(len(range(place, jobs, places)) for place in range(places))
    assert ideal_seconds(slice_batch(jobs, ONE, ""), places) == 87.0 * busiest


@given(st.sampled_from(FAMILY_BOARDS), st.integers())
def test_every_mixed_request_is_served_by_a_slice_of_an_empty_gpu(board: Board, seed: int) -> None:
    gpu = gpu_on(board)
    jobs = mixed_batch(plain_profiles(gpu), gpu.name, seed)
    assert jobs == mixed_batch(plain_profiles(gpu), gpu.name, seed)
    assert len(jobs) == 22
    assert [job.arrival for job in jobs] == sorted(job.arrival for job in jobs)
    for job in jobs:
        answer = candidate(job.request, gpu)
        assert isinstance(answer, Candidate)
        assert answer.profile is not None


def test_another_seed_draws_another_mixture() -> None:
    profiles = plain_profiles(a100(0))
    assert mixed_batch(profiles, "", 1) != mixed_batch(profiles, "", 2)


def test_the_clock_runs_so_many_times_as_fast() -> None:
    hand = HandClock()
    clock = DemoClock(15.0, hand)
    hand.time += 2.0
    assert clock.now() == 30.0
    assert clock.real(87.0) == pytest.approx(5.8)
    assert [clock_face(seconds) for seconds in (0.0, 59.9, 60.0, 247.5)] == ["0:00", "0:59", "1:00", "4:07"]


def test_the_scene_follows_steps_and_jobs(golden: Golden) -> None:
    hand = HandClock()
    scene = DemoTracker(DemoClock(10.0, hand))
    cut, whole = a100(0, MigMode.DISABLED), a100(1, MigMode.DISABLED)
    scene.begin("Part 2 of 3: jobs in slices", [cut, whole])
    scene.step(cut, SetMigMode(cut.uuid, True))
    assert scene.picture().gpus[0].mode == "MIG on"
    scene.step(cut, ResetGpu(cut.uuid))
    assert scene.picture().gpus[0].mode == "reset"
    for start in range(3):
        scene.step(cut, CreateInstance(cut.uuid, ONE, Placement(start, 1), (ONE,)))
    scene.step(cut, DestroyInstance(cut.uuid, ONE, Placement(1, 1)))
    in_slice, on_gpu = Slice(cut.uuid, ONE, Placement(2, 1)), WholeGpu(whole.uuid)
    for _ in range(4):
        scene.asked()
    scene.started([in_slice])
    scene.started([on_gpu])
    scene.step(cut, CreateInstance(cut.uuid, TWO, Placement(4, 2), (TWO,)))
    hand.time += 7.0
    picture = scene.picture()
    assert (picture.waiting, picture.running, picture.done, picture.seconds) == (2, 2, 0, 70.0)
    blocks = [(str(block.profile), str(block.placement), block.state) for block in picture.gpus[0].blocks]
    assert blocks == [("1g.5gb", "0:1", "idle"), ("1g.5gb", "2:1", "busy"), ("2g.10gb", "4:2", "making")]
    console = Console(width=80, no_color=True)
    with console.capture() as printed:
        console.print(draw(picture))
    golden("demo_picture.txt", printed.get())
    scene.ended([in_slice])
    scene.ended([on_gpu])
    picture = scene.picture()
    assert (picture.waiting, picture.running, picture.done) == (2, 0, 2)
    assert picture.gpus[0].blocks[1].state is BlockState.IDLE
    assert picture.gpus[1].blocks == ()


def record(
    seconds: float, asked: float, granted: float, gpu: GpuState, created: int = 0, destroyed: int = 0
) -> JobRecord:
    (job,) = slice_batch(1, ONE, "")
    grant = Slice(gpu.uuid, ONE, Placement(0, 1))
    job = Job(job.name, job.request, seconds)
    return JobRecord(job, (grant,), created, destroyed, asked, granted, granted + seconds)


def result_of(slice_granted: float) -> DemoResult:
    """Two GPUs: 4 jobs of 10 s in two rounds with 1 s lost in each, then 4 of 16 s in slices after 3 s of cutting."""
    gpu, other = a100(0), a100(1)
    whole = [record(10.0, 0.0, granted, each) for each in (gpu, other) for granted in (1.0, 12.0)]
    slices = [record(16.0, 103.0, 103.0 + slice_granted, each) for each in (gpu, gpu, other, other)]
    mixed = (record(5.0, 200.0, 200.5, gpu), record(6.0, 201.0, 203.0, other, created=1, destroyed=2))
    return DemoResult(
        10.0,
        (gpu, other),
        ONE,
        BatchResult(tuple(whole), 0.0, 0.0, 20.0),
        BatchResult(tuple(slices), 100.0, 3.0, 16.0),
        6,
        mixed,
    )


def test_the_figures_contain_what_the_batches_took_beside_their_jobs() -> None:
    result = result_of(slice_granted=1.0)
    assert (result.whole.seconds, result.whole.overhead, result.whole.at_once) == (22.0, 2.0, 2)
    assert (result.slices.seconds, result.slices.granting, result.slices.at_once) == (20.0, 1.0, 4)
    assert result.ratio == pytest.approx(22.0 / 20.0)
    assert result.ideal_ratio == pytest.approx(20.0 / 16.0)
    assert result.ratio_at_full_time == pytest.approx((20.0 + 0.2) / (16.0 + 3.0 + 0.1))


def test_a_ratio_far_from_theory_is_called_so(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    print_result(result_of(slice_granted=1.0), "p4d.24xlarge", simulated=True)
    printed = capsys.readouterr().out
    assert "12% below the ratio without overhead" in printed
    golden("demo_result.txt", printed)
    near = result_of(slice_granted=0.0)
    print_result(near, "machine", simulated=False)
    printed = capsys.readouterr().out
    assert near.ratio / near.ideal_ratio == pytest.approx(0.926, abs=0.001)
    assert "The measured ratio" not in printed
    assert "The jobs only sleep" in printed


def test_boards_are_recognised_on_the_pci_bus(tmp_path: Path) -> None:
    devices = {
        "0000:10:1c.0": ("0x10de", "0x20b0"),  # A100-SXM4-40GB
        "0000:11:00.0": ("0x10de", "0x1eb8"),  # T4: no MIG
        "0000:12:00.0": ("0x8086", "0x20b0"),  # another maker's device of the same number
        "0000:13:00.0": ("0x10de", "0x2330"),  # H100 80GB HBM3
    }
    for address, (vendor, device) in devices.items():
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
    assert mig_boards(tmp_path) == ("A100-40GB", "H100-80GB-SXM")
    assert mig_boards(tmp_path / "nowhere") == ()
