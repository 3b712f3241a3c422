"""The witness of the competition sees what it is there to see."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cluster.competition.pods import PodSeen
from tests.cluster.competition.promises import layout_held_up, offers_wrong, pods_held_up, run_held_up
from tests.cluster.competition.witness import MARK, Hardware, Holding, breaches, holdings

LISTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)
  MIG 1g.5gb      Device  0: (UUID: MIG-1)
  MIG 2g.10gb     Device  1: (UUID: MIG-2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)
"""
HARDWARE = Hardware.parse(LISTED)
PLACES = {"MIG-1": "GPU-a", "MIG-2": "GPU-a", "MIG-9": "GPU-b"}


def _breaches(*held: tuple[str, str]) -> list[str]:
    holdings = [Holding(name, pid, 1, (device,)) for pid, (name, device) in enumerate(held, 1)]
    return [each.partition(" ")[2] for each in breaches(holdings, HARDWARE, PLACES)]


def test_each_with_its_own_device_is_no_breach() -> None:
    assert _breaches(("pod-1", "MIG-1"), ("pod-1", "MIG-1"), ("run-2", "MIG-2"), ("pod-3", "GPU-b")) == []


def test_two_holders_of_a_slice_are_a_breach() -> None:
    assert _breaches(("pod-1", "MIG-1"), ("run-2", "MIG-1")) == [
        "MIG-1 has 2 holders: pod-1 (pids 1) and run-2 (pids 2)"
    ]


def test_a_held_slice_that_is_gone_is_a_breach() -> None:
    assert _breaches(("pod-1", "MIG-7")) == ["MIG-7 is gone, though pod-1 (pids 1) holds it"]


def test_a_held_gpu_that_was_cut_is_a_breach() -> None:
    assert _breaches(("pod-1", "GPU-a")) == ["GPU-a was cut, though pod-1 (pids 1) holds it"]


def test_a_gpu_held_beside_a_slice_of_it_is_a_breach() -> None:
    assert "GPU-b is held by pod-1 (pids 1), and slices of it by pod-2 (pids 2)" in _breaches(
        ("pod-1", "GPU-b"), ("pod-2", "MIG-9")
    )


def test_a_process_is_known_by_its_environment() -> None:
    token = f"witness.{os.getpid()}"
    environment = {MARK: f"{token}/pod-1", "NVIDIA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], env=environment, stdin=-1, stdout=-1
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = holdings(token)
        process.communicate(b"\n")
    assert [(each.competitor, each.pid, each.devices) for each in found] == [("pod-1", process.pid, ("MIG-1", "MIG-2"))]


def test_a_layout_waits_for_somebody_who_is_named_and_there() -> None:
    pending = {"nvidia.com/mig.config": "all-1g.5gb", "nvidia.com/mig.config.state": "pending"}
    named = {"message": "2g.10gb at 0:2 is in use by pod ns/pod-1; 1g.5gb is in use by allocation 0a1b (sleep)"}
    assert layout_held_up(pending, named, [], ["pod-1"], ["0a1b"]) == ""
    assert "pod-1, which is not there" in layout_held_up(pending, named, [], [], ["0a1b"])
    assert "nobody is named" in layout_held_up(pending, {"message": "it is being applied"}, [], [], [])
    failed = {**pending, "nvidia.com/mig.config.state": "failed"}
    assert "is failed" in layout_held_up(failed, named, [], ["pod-1"], ["0a1b"])


def test_a_pod_waits_only_while_the_node_has_nothing_for_it() -> None:
    waiting = PodSeen("pod-2", "u2", "Pending", "", "r", "", terminating=False)
    running = PodSeen("pod-1", "u1", "Running", "", "r", "p4d", terminating=False)
    assert pods_held_up({"r": 1}, [running, waiting]) == ""
    assert "of which 1 are free" in pods_held_up({"r": 2}, [running, waiting])


def test_a_run_waits_only_while_there_is_no_room() -> None:
    assert run_held_up("run-1", "--mig-profile=1g.5gb", HARDWARE, {"MIG-1", "GPU-b"}) == ""
    assert "nobody has MIG-1" in run_held_up("run-1", "--mig-profile=1g.5gb", HARDWARE, {"MIG-2", "GPU-b"})
    assert "nobody has GPU-b" in run_held_up("run-1", "--gpus=1", HARDWARE, {"MIG-2"})
    assert run_held_up("run-1", "--gpus=1", HARDWARE, {"GPU-b"}) == "", "idle slices may be somebody else's"


def test_what_a_run_has_or_a_pod_as_another_resource_is_not_to_be_offered() -> None:
    one, two = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb"
    assert offers_wrong({one: 1, two: 1}, HARDWARE, {"MIG-1": one}) == ""
    assert offers_wrong({one: 0, two: 1}, HARDWARE, {"MIG-1": ""}) == ""
    assert "1 of nvidia.com/mig-1g.5gb are offered, not 0" in offers_wrong({one: 1, two: 1}, HARDWARE, {"MIG-1": "r"})
    assert "0 of nvidia.com/mig-2g.10gb are offered, not 1" in offers_wrong({one: 1}, HARDWARE, {})
