"""The comparison with a real driver must be able to fail; this proves it on simulated machines, without a GPU."""

from __future__ import annotations

from pathlib import Path

from tests.gpu.comparison import differences, probe_in_process
from tranche_simulator.machine import SimulatedMachine


def test_two_machines_of_one_board_answer_alike(tmp_path: Path) -> None:
    """UUIDs, bus ids and seeds differ; no answer does."""
    one = SimulatedMachine.create("one", boards=["H200-141GB"], root=tmp_path, time_scale=0, seed=1)
    two = SimulatedMachine.create("two", boards=["H200-141GB"], root=tmp_path, time_scale=0, seed=2)
    answers = probe_in_process(one.environment(), 0)
    assert differences(answers, probe_in_process(two.environment(), 0)) == []
    assert answers["profile 0"]["memorySizeMB"] == 16384
    assert answers["profile 0 placements"] == [[start, 1] for start in range(7)]


def test_a_difference_between_boards_is_found_and_not_explained_away(tmp_path: Path) -> None:
    """An H100 is not an H200: names, memory and profiles are reported, each as unexplained."""
    h100 = SimulatedMachine.create("h100", boards=["H100-80GB-SXM"], root=tmp_path, time_scale=0)
    h200 = SimulatedMachine.create("h200", boards=["H200-141GB"], root=tmp_path, time_scale=0)
    found = differences(probe_in_process(h100.environment(), 0), probe_in_process(h200.environment(), 0))
    unexplained = {difference.question for difference in found if not difference.explanation}
    assert {"name", "memory", "profile 0", "profile 4"} <= unexplained
    assert "architecture" not in unexplained
