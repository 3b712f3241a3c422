"""`tranche gpus`: GPUs, their slices, who holds them, what there is room for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.conftest import MakeMachine
from tests.conftest import Golden
from tests.machines import TestMachine, needs_root, scrub, wait_until


def test_every_kind_of_gpu_and_slice_is_shown(make_machine: MakeMachine, golden: Golden) -> None:
    machine = make_machine("A100-40GB", "A100-40GB", "T4", "A30-24GB", "A100-40GB")
    machine.cut_by_hand(0, "9", "19")
    machine.smi("-i", "4", "-mig", "1")
    busy = machine.json("gpus")["gpus"][0]["slices"][1]["devices"][0]["uuid"]
    machine.machine.inject_busy(busy, pid=5004242, name="notebook")
    machine.hold("--mig-profile", "2g.10gb")
    machine.hold("--gpus", "1", "--gpu-model", "A30")
    ids = [each["id"] for each in machine.json("ps")["allocations"]]
    golden("gpus.txt", scrub(machine.tranche("gpus").stdout, ids))
    golden("gpus-wide.txt", scrub(machine.tranche("gpus", "-o", "wide").stdout, ids))


def test_json_tells_what_the_driver_and_the_ledger_know(two_a100: TestMachine) -> None:
    two_a100.cut_by_hand(0, "9")
    workload = two_a100.hold("--mig-profile", "1g.5gb")
    document = two_a100.json("gpus")
    assert document["kind"] == "GpuList"
    assert document["ledgerRead"] is True
    gpu = document["gpus"][0]
    held, foreign = gpu["slices"]
    allocation = two_a100.json("ps")["allocations"][0]
    assert (foreign["profile"], foreign["state"], foreign["owned"], foreign["allocationId"]) == (
        "3g.20gb",
        "idle",
        False,
        None,
    )
    assert (held["profile"], held["state"], held["owned"], held["allocationId"]) == (
        "1g.5gb",
        "held",
        True,
        allocation["id"],
    )
    assert held["memoryBytes"] == 4864 * 1024**2
    assert held["placement"] == allocation["grants"][0]["placement"]
    listed = re.findall(r"MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", two_a100.smi("-L"))
    shown = [(d["name"], str(d["migIndex"]), d["uuid"]) for s in gpu["slices"] for d in s["devices"]]
    assert sorted(shown) == sorted(listed)
    assert gpu["mig"] == {"mode": "enabled", "pendingMode": "enabled", "changeNeedsReset": True}
    assert document["gpus"][1]["slices"] == []
    assert allocation["pid"] == workload.pid


def test_a_slice_that_vanished_under_its_allocation_is_missing(two_a100: TestMachine) -> None:
    two_a100.hold("--mig-profile", "1g.5gb")
    two_a100.machine.reboot()
    gpu = two_a100.json("gpus")["gpus"][0]
    assert [(each["state"], each["gpuInstanceId"], each["owned"]) for each in gpu["slices"]] == [
        ("missing", None, True)
    ]
    assert "instance missing" in two_a100.tranche("ps").stdout


def test_a_lost_gpu_is_shown_and_stops_nothing(two_a100: TestMachine) -> None:
    two_a100.machine.inject_lost(1)
    lines = two_a100.tranche("gpus").stdout.splitlines()
    assert len(lines) == 3
    assert " lost " in lines[2]
    assert two_a100.json("gpus")["gpus"][1]["lost"] is True
    assert "the driver has lost GPU 1" in two_a100.tranche("profiles").stderr
    assert "the driver has lost GPU 1" in two_a100.tranche("profiles", "--gpu", "1", code=21).stderr


def test_a_lost_gpu_keeps_its_name_where_the_register_has_seen_it(two_a100: TestMachine) -> None:
    before = two_a100.json("gpus")["gpus"][1]
    two_a100.tranche("run", "--gpus", "1", "-q", "--", "true")
    two_a100.machine.inject_lost(1)
    lost = two_a100.json("gpus")["gpus"][1]
    assert lost["lost"] is True
    assert [lost[key] for key in ("uuid", "name", "pciBusId")] == [before[key] for key in ("uuid", "name", "pciBusId")]
    said = [line for line in two_a100.tranche("metrics").stdout.splitlines() if line.startswith("tranche_gpu_lost{")]
    assert [line.split()[-1] for line in said if before["uuid"] in line] == ["1.0"]


def test_every_request_is_told_of_a_lost_gpu_that_it_is_lost(two_a100: TestMachine) -> None:
    two_a100.tranche("cordon", "0")
    two_a100.machine.inject_lost(1)
    two_a100.wait_in_queue("--gpus", "2")
    for request in (
        ("--gpus", "1"),
        ("--gpu-memory", "30G"),
        ("--gpu", "0.5"),
        ("--mig-profile", "1g.5gb"),
        ("--gpus", "1", "--gpu-model", "A100"),
    ):
        said = json.loads(two_a100.tranche("explain", *request, "-o", "json", code=None).stdout)["gpus"]
        assert [each["obstacle"]["reason"] for each in said] == ["Withheld", "GpuLost"], request


def test_a_pending_mode_change_is_shown(two_a100: TestMachine) -> None:
    two_a100.smi("-i", "1", "-mig", "1")
    assert "disabled (enabled after a reset)" in two_a100.tranche("gpus").stdout


@needs_root
def test_without_permission_for_the_ledger_the_hardware_is_shown(readable_a100: TestMachine) -> None:
    readable_a100.hold("--mig-profile", "1g.5gb")
    readable_a100.state_dir.chmod(0o700)
    done = readable_a100.tranche("gpus", as_nobody=True)
    assert "the holders of slices are not shown" in done.stderr
    assert "1g.5gb at" in done.stdout
    assert "held" not in done.stdout
    document = json.loads(readable_a100.tranche("gpus", "-o", "json", as_nobody=True).stdout)
    assert document["ledgerRead"] is False
    assert [(each["owned"], each["state"]) for each in document["gpus"][0]["slices"]] == [(None, "idle")]


@pytest.mark.parametrize(
    "command",
    [
        ("run", "-q", "--mig-profile", "1g.5gb", "--", "true"),
        ("layout", "apply", "--selected-config", "all-7g.40gb"),
    ],
    ids=["request", "layout"],
)
def test_a_slice_that_is_half_made_is_tranches_own(two_a100: TestMachine, command: tuple[str, ...]) -> None:
    for function in ("nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceCreateComputeInstanceWithPlacement"):
        two_a100.machine.inject_latency(function, 600)
    work = two_a100.start(*command)

    def slices() -> list[dict[str, Any]]:
        return [
            each for gpu in two_a100.json("gpus")["gpus"] for each in gpu["slices"] if each["gpuInstanceId"] is not None
        ]

    wait_until(lambda: slices() != [], work)
    assert [(each["owned"], each["devices"]) for each in slices()][:1] == [(True, [])]
    assert "foreign" not in two_a100.tranche("gpus").stdout
    work.kill()
