"""nvidia-smi mig -lgip, -lgipp, -lcip: what a GPU can be cut into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.simulator.smi_runner import MIG_BOARDS, make_smi, smi_of_swapped_a100


@pytest.mark.parametrize("board", MIG_BOARDS)
def test_gpu_instance_profiles_of_an_empty_gpu(tmp_path: Path, golden: Golden, board: str) -> None:
    smi = make_smi(tmp_path, board)
    smi.enable_mig()
    golden(f"lgip-{board}.txt", smi.succeed("mig", "-lgip"))


@pytest.mark.parametrize("board", ["A30-24GB", "A100-40GB", "RTX-PRO-6000-96GB"])
def test_placements_of_each_grid(tmp_path: Path, golden: Golden, board: str) -> None:
    smi = make_smi(tmp_path, board)
    smi.enable_mig()
    golden(f"lgipp-{board}.txt", smi.succeed("mig", "-lgipp"))


def test_compute_instance_profiles_of_three_gpu_instances(tmp_path: Path, golden: Golden) -> None:
    smi = smi_of_swapped_a100(tmp_path)
    smi.enable_mig()
    smi.succeed("mig", "-cgi", "4g.20gb,2g.10gb,1g.5gb")
    golden("lcip-A100-40GB.txt", smi.succeed("mig", "-lcip"))


def test_free_counts_follow_what_is_left(tmp_path: Path) -> None:
    """The counts that a driver showed after 4g and 2g on an A100."""
    smi = make_smi(tmp_path, "A100-40GB")
    smi.enable_mig()
    smi.succeed("mig", "-cgi", "5,14")
    rows = [line.split() for line in smi.succeed("mig", "-lgip").splitlines() if " MIG " in line]
    free = {int(row[4]): row[5] for row in rows}
    assert free == {19: "1/7", 20: "1/1", 15: "1/4", 14: "0/3", 9: "0/2", 5: "0/1", 0: "0/1"}


def test_profiles_are_numbered_by_gpu(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "H100-80GB-SXM", "A30-24GB")
    smi.enable_mig()
    rows = [line.split() for line in smi.succeed("mig", "-lgip").splitlines() if " MIG " in line]
    assert [(row[1], row[3]) for row in rows if row[3].startswith("1g")] == [
        ("0", "1g.10gb"),
        ("0", "1g.10gb+me"),
        ("0", "1g.20gb"),
        ("1", "1g.6gb"),
        ("1", "1g.6gb+me"),
    ]
    chosen = [line.split() for line in smi.succeed("mig", "-lgip", "-i", "1").splitlines() if " MIG " in line]
    assert {row[1] for row in chosen} == {"1"}


def test_profiles_with_mig_off_are_known_from_hopper_on_only(tmp_path: Path) -> None:
    hopper = make_smi(tmp_path, "H100-80GB-SXM", name="hopper")
    assert " MIG 1g.10gb " in hopper.succeed("mig", "-lgip")
    ampere = make_smi(tmp_path, "A100-40GB", name="ampere")
    answer = ampere("mig", "-lgip")
    assert (answer.code, answer.text) == (6, "No MIG-enabled devices found.\n")


def test_a_gpu_without_mig_has_no_profiles(tmp_path: Path) -> None:
    answer = make_smi(tmp_path, "T4")("mig", "-lgip")
    assert (answer.code, answer.text) == (6, "No MIG-supported devices found.\n")
