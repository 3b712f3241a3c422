"""`tranche events`: what happened, once and followed."""

from __future__ import annotations

import json
import re
import select
import subprocess

import pytest

from tests.machines import TRANCHE, TestMachine, needs_root


def test_a_run_leaves_its_story(two_a100: TestMachine) -> None:
    two_a100.tranche("run", "--mig-profile", "1g.5gb", "-q", "--", "sh", "-c", "exit 3", code=3)
    events = two_a100.json("events")["events"]
    assert [each["type"] for each in events] == ["SetMigMode", "ResetGpu", "CreateInstance", "Granted", "Released"]
    assert len({each["allocationId"] for each in events}) == 1
    assert "exit code 3" in events[-1]["message"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each["time"]) for each in events)
    assert [each["position"] for each in events] == sorted(each["position"] for each in events)
    lines = two_a100.tranche("events", "--last", "2").stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["Granted", "Released"]
    assert two_a100.tranche("events", "--last", "0").stdout == ""


@pytest.mark.parametrize("looks", [("gpus",), ("run", "-q", "--gpus", "1", "--", "true")], ids=["a look", "a decision"])
def test_a_lost_gpu_is_an_event_once_and_so_is_its_return(two_a100: TestMachine, looks: tuple[str, ...]) -> None:
    two_a100.tranche(*looks)
    uuid = two_a100.json("gpus")["gpus"][1]["uuid"]

    def found() -> list[tuple[str, str, str]]:
        events = two_a100.json("events")["events"]
        return [(each["type"], each["gpuUUID"], each["message"]) for each in events if each["type"].startswith("Gpu")]

    for round in (1, 2):
        for lost in (True, False):
            two_a100.machine.inject_lost(1, lost=lost)
            two_a100.tranche(*looks)
            two_a100.tranche(*looks)
        assert (
            found()
            == [
                ("GpuLost", uuid, "GPU 1: the driver has lost it"),
                ("GpuRecovered", uuid, "GPU 1: the driver can reach it again"),
            ]
            * round
        )


@needs_root
def test_who_may_not_write_the_ledger_still_sees_a_lost_gpu(readable_a100: TestMachine) -> None:
    readable_a100.tranche("run", "-q", "--gpus", "1", "--", "true")
    readable_a100.machine.inject_lost(0)
    assert " lost: " in readable_a100.tranche("gpus", as_nobody=True).stdout


def test_following_prints_each_event_once_as_a_json_line(two_a100: TestMachine) -> None:
    two_a100.tranche("run", "--mig-profile", "1g.5gb", "-q", "--", "true")
    with subprocess.Popen(
        [*TRANCHE, "events", "--follow", "--last", "1", "-o", "json"],
        env={**two_a100.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        try:
            first = json.loads(follower.stdout.readline())
            two_a100.tranche("run", "--mig-profile", "1g.5gb", "-q", "--", "true")
            later = [json.loads(follower.stdout.readline()) for _ in range(2)]
        finally:
            follower.terminate()
    assert (first["apiVersion"], first["kind"], first["type"]) == ("tranche.dev/v1", "Event", "Released")
    assert [each["type"] for each in later] == ["Granted", "Released"]
    assert later[0]["position"] == first["position"] + 1


def test_following_from_now_on_repeats_nothing(two_a100: TestMachine) -> None:
    two_a100.tranche("run", "--mig-profile", "1g.5gb", "-q", "--", "true")
    with subprocess.Popen(
        [*TRANCHE, "events", "--follow", "--last", "0"],
        env={**two_a100.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        try:
            while not select.select([follower.stdout], [], [], 0)[0]:  # until the follower has begun to look
                two_a100.tranche("run", "--mig-profile", "1g.5gb", "-q", "--", "true")
            first = follower.stdout.readline().split()
        finally:
            follower.terminate()
    old = two_a100.json("events")["events"][0]["allocationId"]
    assert first[3] != old


def test_events_need_no_driver(two_a100: TestMachine) -> None:
    two_a100.tranche("run", "--mig-profile", "1g.5gb", "-q", "--", "true")
    done = two_a100.tranche("events", "--last", "1", LD_LIBRARY_PATH="")
    assert "Released" in done.stdout


@pytest.mark.parametrize("arguments", [("--last", "-1"), ("--last", "x"), ("more",), ("-o", "wide")])
def test_bad_input_is_refused(two_a100: TestMachine, arguments: tuple[str, ...]) -> None:
    assert two_a100.tranche("events", *arguments, code=2).stdout == ""
