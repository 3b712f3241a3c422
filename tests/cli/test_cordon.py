"""`tranche cordon`: nothing more of a GPU is given away, whoever waits is told why, and nobody loses anything."""

from __future__ import annotations

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine, machine_in, needs_root, readable_folder, wait_until
from tranche.cli.runtime import user_name
from tranche.core.errors import GpuNotFound, PermissionDenied

CORDONED = f"cordoned by {user_name()}"


def test_a_cordoned_gpu_is_given_to_nobody_more_and_says_why(two_a100: TestMachine) -> None:
    held = two_a100.hold("--mig-profile", "1g.5gb")
    assert two_a100.tranche("cordon", "0", "--reason", "its fan").stderr == "GPU 0 cordoned\n"
    first, second = two_a100.json("gpus")["gpus"]
    assert (first["withheld"], second["withheld"]) == (f"{CORDONED}: its fan", None)
    assert [each["state"] for each in first["slices"]] == ["held"], "nothing is taken away"
    explained = two_a100.json("explain", "--mig-profile", "1g.5gb")["gpus"]
    assert [each["obstacle"] and each["obstacle"]["reason"] for each in explained] == ["Withheld", None]
    assert explained[0]["obstacle"]["message"] == f"{CORDONED}: its fan"
    other = two_a100.hold("--mig-profile", "1g.5gb")
    grants = [grant["gpuUUID"] for each in two_a100.json("ps")["allocations"] for grant in each["grants"]]
    assert sorted(grants) == sorted([first["uuid"], second["uuid"]])
    assert held.process.poll() is other.process.poll() is None
    for command in ("gpus", "top"):
        options = () if command == "gpus" else ("--once",)
        assert f"{CORDONED}: its fan" in two_a100.tranche(command, *options).stdout
    assert f"{CORDONED}: its fan" in two_a100.tranche("gpus", "-o", "svg").stdout


def test_who_waits_for_a_cordoned_gpu_starts_when_it_is_given_away_again(make_machine: MakeMachine) -> None:
    machine = make_machine("T4")
    machine.tranche("cordon", machine.json("gpus")["gpus"][0]["uuid"])
    (uncordon,) = machine.json("explain", "--gpus", "1")["remedies"]
    assert uncordon["kind"] == "Uncordon"
    assert uncordon["message"].endswith(": tranche uncordon 0")
    waiting = machine.wait_in_queue("--gpus", "1")
    (waiter,) = machine.json("ps")["waiters"]
    assert CORDONED in waiter["why"]
    assert machine.tranche("uncordon", "0").stderr == "GPU 0 uncordoned\n"
    wait_until(lambda: bool(machine.json("ps")["allocations"]), waiting)
    assert machine.tranche("uncordon", "0").stderr == "GPU 0 was not cordoned\n"
    cordoned, uncordoned = [
        each for each in machine.json("events")["events"] if each["type"] in ("Cordoned", "Uncordoned")
    ]
    assert cordoned["data"] == {"user": user_name(), "reason": "", "actor": None}
    assert uncordoned["cause"] == cordoned["position"]


def test_an_idle_slice_of_a_cordoned_gpu_stays_and_layouts_can_be_applied(two_a100: TestMachine) -> None:
    two_a100.tranche("run", "-q", "--mig-profile", "1g.5gb", "--", "true")
    two_a100.tranche("cordon", "0", "1")
    assert "Withheld" in two_a100.tranche("explain", "--mig-profile", "1g.5gb").stdout
    assert [each["state"] for each in two_a100.json("gpus")["gpus"][0]["slices"]] == ["idle"]
    two_a100.tranche("layout", "apply", "-c", "all-1g.5gb")
    assert [len(gpu["slices"]) for gpu in two_a100.json("gpus")["gpus"]] == [7, 7]


@pytest.mark.parametrize("command", ["cordon", "uncordon"])
def test_a_gpu_that_is_not_there_is_refused_and_nothing_is_done(two_a100: TestMachine, command: str) -> None:
    assert "no GPU 7 on this machine" in two_a100.tranche(command, "0", "7", code=None).stderr
    assert two_a100.json("events")["events"] == []


def test_a_reason_is_one_line_whatever_bytes_it_has(two_a100: TestMachine) -> None:
    two_a100.tranche("cordon", "0", "--reason", " its\nfan \udcff ")
    assert two_a100.json("gpus")["gpus"][0]["withheld"] == f"{CORDONED}: its fan ?"


def test_a_gpu_that_is_named_twice_is_one(two_a100: TestMachine) -> None:
    uuid = two_a100.json("gpus")["gpus"][1]["uuid"]
    assert two_a100.tranche("cordon", "1", uuid, "1").stderr.count("GPU 1") == 1
    assert two_a100.tranche("uncordon", "1", uuid).stderr.count("GPU 1") == 1


def test_the_newer_word_counts(two_a100: TestMachine) -> None:
    two_a100.tranche("cordon", "0", "--reason", "one")
    two_a100.tranche("cordon", "0", "--reason", "other")
    assert two_a100.json("gpus")["gpus"][0]["withheld"] == f"{CORDONED}: other"


REASON = "because " * 700


def test_a_long_reason_is_shortened_for_people_and_whole_for_programs(two_a100: TestMachine) -> None:
    two_a100.tranche("cordon", "0", "1", "--reason", REASON)
    for command in (("events",), ("gpus",), ("explain", "--gpus", "1")):
        lines = two_a100.tranche(*command, code=None).stdout.splitlines()
        assert max(map(len, lines)) < 1200, command
        assert any("more characters; for the full text, use -o json" in line for line in lines), command
    assert two_a100.json("events")["events"][-1]["data"]["reason"] == REASON.strip()


CHANGES = (
    ("cordon", "0"),
    ("uncordon", "0"),
    ("run", "--gpus", "1", "--", "true"),
    ("policy", "set", "sharing=off"),
    ("policy", "unset"),
    ("layout", "apply", "-c", "all-disabled"),
)


@needs_root
def test_an_ordinary_user_is_told_whose_the_register_is() -> None:
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine:
        machine.cache = folder / "cache"
        machine.tranche("run", "--gpus", "1", "-q", "--", "true")
        for mode in (0o755, 0o700):
            machine.state_dir.chmod(mode)
            for command in CHANGES:
                done = machine.tranche(*command, as_nobody=True, code=PermissionDenied.exit_code)
                assert "only root may change this machine's register" in done.stderr, command
                assert str(machine.state_dir) in done.stderr, command
                assert "sudo" in done.stderr, command


def test_a_lost_gpu_that_nobody_knows_is_not_named_and_one_that_was_seen_is(two_a100: TestMachine) -> None:
    two_a100.machine.inject_lost(0)
    words = (
        ("cordon", "0"),
        ("cordon", "lost-0"),
        ("uncordon", "0"),
        ("policy", "set", "--gpu", "0", "sharing=off"),
        ("policy", "set", "--gpu", "0", "timeslice=short"),
        ("policy", "unset", "--gpu", "0"),
    )
    for each in words:
        refused = two_a100.tranche(*each, code=GpuNotFound.exit_code).stderr
        assert "GPU 0 is lost" in refused
        assert "hint: try again once the driver can reach it" in refused
    two_a100.machine.clear_injections()
    two_a100.tranche("gpus")
    two_a100.machine.inject_lost(0)
    two_a100.tranche("cordon", "0")
    two_a100.tranche("policy", "set", "--gpu", "0", "sharing=off")
    two_a100.machine.clear_injections()
    assert two_a100.json("gpus")["gpus"][0]["withheld"] == CORDONED
    assert two_a100.json("policy", "list")["gpus"][0]["sharing"] == "off"
    assert two_a100.tranche("uncordon", "0").stderr == "GPU 0 uncordoned\n"
