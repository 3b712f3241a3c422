"""`tranche explain`: the answer, its exit code, and that asking changes nothing."""

from __future__ import annotations

import pytest

from tests.cli.conftest import MakeMachine
from tests.conftest import Golden
from tests.machines import TestMachine, scrub


def test_a_request_that_would_start(two_a100: TestMachine, golden: Golden) -> None:
    two_a100.tranche("ps")
    before = two_a100.changes()
    golden("explain-startable.txt", two_a100.tranche("explain", "--mig-profile", "3g.20gb").stdout)
    document = two_a100.json("explain", "--mig-profile", "3g.20gb")
    assert (document["kind"], document["status"], document["exitCode"]) == ("Explanation", "Startable", 0)
    assert document["grants"][0]["profile"] == "3g.20gb"
    assert document["steps"][0]["action"] == "enable MIG mode"
    assert all(each["fits"] for each in document["gpus"])
    assert two_a100.changes() == before
    assert two_a100.json("ps")["allocations"] == []


def test_a_request_that_waits_names_what_is_missing_and_what_would_help(
    make_machine: MakeMachine, golden: Golden
) -> None:
    machine = make_machine("A100-40GB", "A100-40GB", "T4")
    machine.hold("--mig-profile", "4g.20gb")
    machine.cut_by_hand(1, "0")
    ids = [each["id"] for each in machine.json("ps")["allocations"]]
    golden("explain-waiting.txt", scrub(machine.tranche("explain", "--mig-profile", "4g.20gb").stdout, ids))
    document = machine.json("explain", "--mig-profile", "4g.20gb")
    assert (document["status"], document["exitCode"]) == ("Waiting", 0)
    held, foreign, plain = (each["obstacle"] for each in document["gpus"])
    assert (held["reason"], held["allocationIds"]) == ("NoRoom", ids)
    assert (foreign["reason"], foreign["instances"][0]["profile"]) == ("ForeignInstances", "7g.40gb")
    assert plain["reason"] == "ProfileNotSupported"
    kinds = [each["kind"] for each in document["remedies"]]
    assert kinds == sorted(kinds, key=["OtherSlice", "Wait", "DestroyForeign", "Recut", "OtherModel"].index)
    assert "DestroyForeign" in kinds
    assert machine.json("explain", "--mig-profile", "4g.20gb", "--adopt-foreign", "destroy")["status"] == "Startable"


@pytest.mark.parametrize(
    ("request_options", "code", "status"),
    [
        (("--mig-profile", "1g.6gb"), 30, "ProfileNotSupported"),
        (("--gpu-memory", "500G"), 31, "MemoryTooSmall"),
        (("--gpus", "3"), 31, "TooManyGpus"),
        (("--gpus", "1", "--gpu-model", "B200"), 23, "GpuNotFound"),
    ],
)
def test_a_request_that_can_never_be_served_has_its_errors_code(
    two_a100: TestMachine, request_options: tuple[str, ...], code: int, status: str
) -> None:
    document = two_a100.json("explain", *request_options, code=code)
    assert (document["status"], document["exitCode"]) == (status, code)
    assert two_a100.tranche("explain", *request_options, code=code).stdout.startswith(f"{status}: ")


def test_a_part_of_a_gpu_without_mig_is_a_share_with_its_walls(make_machine: MakeMachine) -> None:
    machine = make_machine("T4")
    document = machine.json("explain", "--gpu", "0.5")
    (given,) = document["grants"]
    assert (given["mechanism"], given["isolation"], given["walls"]["memory"]) == ("mps", "soft", "process")
    assert "memory of each process limited by the driver, even turns, faults shared" in document["message"]
    assert machine.json("explain", "--gpu", "0.5", "--isolation", "hard", code=33)["status"] == "SharingUnavailable"


@pytest.mark.parametrize("request_options", [(), ("--gpu", "0"), ("--gpus", "1", "--gpu", "0.5"), ("--gpus", "x")])
def test_a_request_that_is_none_is_refused(two_a100: TestMachine, request_options: tuple[str, ...]) -> None:
    done = two_a100.tranche("explain", *request_options, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")


def test_a_large_machine_names_one_gpu_for_all_that_answer_alike(make_machine: MakeMachine) -> None:
    machine = make_machine(*["A100-40GB"] * 20)
    machine.hold("--gpus", "18")
    machine.hold("--gpus", "2")
    document = machine.json("explain", "--mig-profile", "1g.5gb")
    assert [(each["index"], each["moreGpus"]) for each in document["gpus"]] == [(0, 19)]
    assert (document["gpus"][0]["obstacle"]["reason"], document["gpusSearchedForRemedies"]) == ("GpuBusy", 16)
    text = machine.tranche("explain", "--mig-profile", "1g.5gb").stdout
    assert "(and 19 more GPUs like it)" in text
    assert "what would help, cheapest first (16 of the GPUs searched):" in text


def test_a_request_that_waits_is_explained_in_its_place(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB")
    machine.hold("--mig-profile", "7g.40gb")
    machine.wait_in_queue("--mig-profile", "3g.20gb")
    (holder,) = machine.json("ps")["allocations"]
    (waiter,) = machine.json("ps")["waiters"]
    document = machine.json("explain", waiter["id"][:5])
    assert (document["status"], document["waitersAhead"]) == ("Waiting", 0)
    assert document["request"] == waiter["request"]
    (gpu,) = document["gpus"]
    assert gpu["obstacle"]["allocationIds"] == [holder["id"]], "not the request itself"
    assert "is waiting" in machine.tranche("explain", holder["id"], code=34).stderr
    assert "cannot be combined" in machine.tranche("explain", waiter["id"], "--gpus", "1", code=2).stderr
    machine.tranche("release", waiter["id"][:5])
    assert machine.json("ps")["waiters"] == []
    assert "no request" in machine.tranche("explain", waiter["id"], code=34).stderr
