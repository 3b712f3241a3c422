"""`tranche profiles`: what GPUs can be cut into, and what is free now."""

from __future__ import annotations

import json
import re
from ctypes.util import find_library

import pytest

from tests.cli.conftest import MakeMachine
from tests.conftest import Golden
from tests.machines import TestMachine, run_without_driver
from tranche.core.board import catalogue

FAMILIES = ("A30-24GB", "A100-40GB", "H100-80GB-SXM", "H20-96GB", "B200", "RTX-PRO-6000-96GB", "RTX-PRO-5000-48GB")


@pytest.mark.parametrize("board", FAMILIES)
def test_a_board_is_shown_without_a_driver(board: str, golden: Golden) -> None:
    golden(f"profiles-{board}.txt", run_without_driver("profiles", "--board", board, "-o", "wide").stdout)


def test_the_catalogue_is_listed_without_a_driver(golden: Golden) -> None:
    golden("boards.txt", run_without_driver("profiles", "--boards").stdout)


def test_a_board_is_found_by_key_and_by_product_in_any_case() -> None:
    listed = json.loads(run_without_driver("profiles", "--boards", "-o", "json").stdout)["boards"]
    assert [each["board"] for each in listed] == [board.key for board in catalogue()]
    for name in ("a100-40gb", "NVIDIA A100-SXM4-40GB", "a100-pcie-40gb"):
        (sheet,) = json.loads(run_without_driver("profiles", "--board", name, "-o", "json").stdout)["boards"]
        assert sheet["board"] == "A100-40GB"


@pytest.mark.skipif(find_library("nvidia-ml") is not None, reason="this host has a driver")
def test_a_driver_is_needed_for_this_machine_only() -> None:
    done = run_without_driver("profiles", code=20)
    assert "--board" in done.stderr
    assert done.stdout == ""


def test_what_is_free_agrees_with_the_driver(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB", "H100-80GB-SXM")
    machine.cut_by_hand(0, "5", "14")
    machine.cut_by_hand(1, "9", "19")
    for index in (0, 1):
        (sheet,) = machine.json("profiles", "--gpu", str(index))["boards"]
        assert sheet["source"] == "driver"
        # nvidia-smi's rows: GPU, name, profile ID, free/total instances.
        rows = re.findall(r"\|\s+\d+\s+MIG (\S+)\s+(\d+)\s+(\d+)/(\d+)", machine.smi("mig", "-i", str(index), "-lgip"))
        driver = {name: (int(number), int(free), int(total)) for name, number, free, total in rows}
        ours = {each["name"]: (each["id"], each["free"], each["maxInstances"]) for each in sheet["profiles"]}
        assert ours == driver


def test_gpus_of_one_kind_share_a_table(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB", "T4", "A100-40GB", "A30-24GB")
    done = machine.tranche("profiles")
    assert [line for line in done.stdout.splitlines() if line.startswith("GPU")] == [
        "GPU 0, 2: NVIDIA A100-SXM4-40GB (40 GiB)",
        "GPU 3: NVIDIA A30 (24 GiB)",
    ]
    assert "GPU 1 (Tesla T4) cannot be partitioned" in done.stderr


def test_where_the_driver_tells_nothing_the_catalogue_stands_in(two_a100: TestMachine) -> None:
    done = two_a100.tranche("profiles", "--gpu", "1")
    assert "the table shows the catalogue's" in done.stderr
    assert two_a100.json("profiles", "--gpu", "1")["boards"][0]["source"] == "catalogue"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--gpu", "9"), 23, "no GPU 9 on this machine, which has 2"),
        (("--gpu", "GPU-0"), 23, "no GPU GPU-0"),
        (("--gpu", "-1"), 23, "no GPU -1"),
        (("--board", "H100"), 2, "no board 'H100'"),
        (("--board", ""), 2, "no board ''"),
        (("--board", "B200", "--boards"), 2, "cannot be combined"),
        (("-o", "yaml"), 2, "yaml"),
    ],
)
def test_bad_input_is_refused(two_a100: TestMachine, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = two_a100.tranche("profiles", *arguments, code=code)
    assert message in done.stderr
    assert done.stdout == ""


def test_a_gpu_without_mig_has_no_profiles(make_machine: MakeMachine) -> None:
    done = make_machine("T4").tranche("profiles", "--gpu", "0", code=24)
    assert "cannot be partitioned" in done.stderr
