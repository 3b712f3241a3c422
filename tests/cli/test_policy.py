"""`tranche policy`: the administrator's word, from the option to the decision."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine
from tranche.core.errors import GpuNotFound, NoRoom, PolicyInvalid, QuotaExceeded, ServiceUnavailable
from tranche.core.sharing import GpuPolicy, Timeslice
from tranche.core.sharing_policy import SharingPolicy
from tranche.node.store import records
from tranche.node.store.ledger import Ledger


def test_a_word_is_set_heeded_listed_and_taken_back(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB", "A100-40GB")
    done = machine.tranche("policy", "set", "--gpu", "0", "--gpu", "1", "sharing=off")
    assert done.stderr == "GPU 0: sharing=off, GPU 1: sharing=off\n"
    refused = machine.tranche("run", "--gpu-memory", "4Gi", "--", "true", code=33)
    assert "its policy is sharing=off" in refused.stderr
    assert machine.tranche("run", "--gpus", "1", "--", "true").stdout == ""
    machine.tranche("policy", "unset", "--gpu", "1")
    assert [each["obstacle"] is None for each in machine.json("explain", "--gpu-memory", "4Gi")["gpus"]] == [
        False,
        True,
    ]
    listed = machine.json("policy", "list")
    assert listed["sharing"] is None
    assert [(each["sharing"], each["saidFor"]) for each in listed["gpus"]] == [("off", "gpu"), ("auto", "nothing")]
    changes = [each for each in machine.json("events")["events"] if each["type"] == "PolicyChanged"]
    assert [each["message"] for each in changes] == [
        "GPU 0: sharing=off",
        "GPU 1: sharing=off",
        "GPU 1: sharing policy removed",
    ]


def test_one_word_for_all_counts_where_there_is_no_other(make_machine: MakeMachine) -> None:
    machine = make_machine("T4", "T4")
    machine.tranche("policy", "set", "sharing=off")
    assert machine.tranche("policy", "list").stdout.splitlines()[1].split() == ["0-1", "Tesla", "T4", "off", "all", "-"]
    machine.tranche("policy", "set", "--gpu", "1", "sharing=auto")
    table = machine.tranche("policy", "list").stdout.splitlines()
    assert [line.split()[-3:] for line in table[1:]] == [["off", "all", "-"], ["auto", "gpu", "-"]]
    document = machine.json("explain", "--gpu", "0.2")
    assert [grant["gpuUUID"] for grant in document["grants"]] == [document["gpus"][1]["uuid"]]


def write_policy(folder: Path, **sections: object) -> str:
    path = folder / "policy.yaml"
    path.write_text(json.dumps({"apiVersion": "tranche.dev/v1", "kind": "Policy", **sections}))
    return str(path)


def test_a_file_replaces_the_sections_that_it_has(make_machine: MakeMachine, tmp_path: Path) -> None:
    machine = make_machine("T4", "T4")
    machine.tranche("policy", "set", "--gpu", "1", "sharing=off")
    machine.tranche("policy", "fair", "--group", "daemon", "--weight", "3")
    machine.tranche("policy", "quota", "--group", "daemon", "--gpus", "1")
    path = write_policy(
        tmp_path,
        gpus=[{"gpu": 0, "sharing": "shared", "timeslice": "short"}],
        quotas=[{"shares": 2}, {"user": "4711", "gpus": 0.5}],
        idle={"after": "45m", "end": True},
    )
    before = machine.json("policy", "list")
    dry = machine.tranche("policy", "apply", "-f", path, "--dry-run")
    assert machine.json("policy", "list") == before, "a dry run changes nothing"
    assert dry.stdout.splitlines()[-1] == "Nothing has changed: this was a dry run."
    done = machine.tranche("policy", "apply", "-f", path)
    assert done.stdout.splitlines() == dry.stdout.splitlines()[:-2], "a dry run shows what then changes"
    after = machine.json("policy", "list")
    assert [(each["sharing"], each["timeslice"]) for each in after["gpus"]] == [("shared", "short"), ("auto", None)]
    assert [
        (each["user"], each["group"], each["shares"], each["gpuPercent"], each["weight"]) for each in after["quotas"]
    ] == [
        (None, None, 2, None, 1),
        ("4711", None, None, 50, None),
        (None, "daemon", None, None, 3),
    ]
    assert after["idle"] == {"afterSeconds": 2700, "endsHolds": True}
    again = machine.tranche("policy", "apply", "-f", path)
    assert (again.stdout, again.stderr) == ("", "the policy already matches the file\n")
    told = [each["message"] for each in machine.json("events")["events"] if each["type"] == "QuotaChanged"]
    assert told[-3:] == ["all users: 2 shares, weight 1", "4711: 0.5 GPUs", "@daemon: weight 3"]


def test_the_policy_of_a_gpu_that_is_gone_is_listed_and_unset(make_machine: MakeMachine) -> None:
    machine = make_machine("T4")
    machine.tranche("ps")
    with closing(Ledger(machine.ledger)) as ledger, ledger.write() as db:
        records.set_sharing_policy(db, SharingPolicy(None, {"GPU-gone": GpuPolicy.OFF}))
        records.set_timeslices(db, {"GPU-gone": Timeslice.LONG})
    listed = machine.json("policy", "list")["gpus"]
    assert [(each["index"], each["sharing"], each["timeslice"]) for each in listed] == [
        (0, "auto", None),
        (None, "off", "long"),
    ]
    assert machine.tranche("policy", "list").stdout.splitlines()[2].split() == [
        "GPU-gone",
        "(gone)",
        "off",
        "gpu",
        "long",
    ]
    machine.tranche("policy", "set", "--gpu", "GPU-gone", "sharing=mig", code=GpuNotFound.exit_code)
    assert machine.tranche("policy", "unset", "--gpu", "GPU-gone").stderr == "GPU GPU-gone: sharing=auto\n"
    assert len(machine.json("policy", "list")["gpus"]) == 1


def test_an_exported_policy_is_the_one_in_force(make_machine: MakeMachine, tmp_path: Path) -> None:
    machine = make_machine("T4", "T4")
    machine.tranche("policy", "set", "--gpu", "1", "sharing=off")
    machine.tranche("policy", "quota", "--gpus", "1.5", "--gpu-memory", "10G", "--time", "90m")
    path = str(tmp_path / "exported.yaml")
    machine.tranche("policy", "export", "-f", path)
    assert machine.tranche("policy", "apply", "-f", path).stderr == "the policy already matches the file\n"
    machine.tranche("policy", "unset", "--gpu", "1")
    machine.tranche("policy", "quota", "--remove")
    machine.tranche("policy", "apply", "-f", path)
    assert machine.tranche("policy", "export").stdout == Path(path).read_text()


def test_a_dry_run_names_those_that_a_smaller_quota_is_for(two_a100: TestMachine, tmp_path: Path) -> None:
    two_a100.hold("--gpus", "1")
    waiter = two_a100.wait_in_queue("--gpus", "2")
    path = write_policy(tmp_path, quotas=[{"user": "root", "gpus": 0.5}])
    dry = two_a100.tranche("policy", "apply", "-f", path, "--dry-run")
    lines = dry.stderr.splitlines()
    assert lines[0] == ("warning: root may hold at most 0.5 GPUs at once, already holds 1; running commands continue")
    assert lines[1].startswith("warning: root's waiting request ")
    assert "can no longer start: --gpus 2 exceeds the quota" in lines[1], lines[1]
    document = two_a100.json("policy", "apply", "-f", path, "--dry-run")
    assert document["applied"] is False
    assert document["beyondQuota"] == ["root may hold at most 0.5 GPUs at once, already holds 1"]
    assert [(each["uid"], each["reason"]) for each in document["refused"]] == [(0, "QuotaExceeded")]
    several = write_policy(tmp_path, quotas=[{"user": "root", "gpus": 0.5, "shares": 0}])
    assert two_a100.json("policy", "apply", "-f", several, "--dry-run")["beyondQuota"] == [
        "root may hold at most 0.5 GPUs at once, already holds 1",
        "root may hold at most 0 shares at once, already holds 1",
    ]
    assert waiter.poll() is None
    write_policy(tmp_path, quotas=[{"user": "root", "gpus": 0.5}])
    two_a100.tranche("policy", "apply", "-f", path)
    assert waiter.wait(60) == QuotaExceeded.exit_code
    assert len(two_a100.running()) == 1


def test_of_two_writers_one_is_last_and_a_section_that_a_file_lacks_keeps_a_change_made_meanwhile(
    two_a100: TestMachine, tmp_path: Path
) -> None:
    machine = two_a100
    files = []
    for number, (sharing, length) in enumerate((("mig", "short"), ("shared", "long"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        gpus = [{"gpu": index, "sharing": sharing, "timeslice": length} for index in (0, 1)]
        quotas = [{"user": str(4000 + each), "gpus": number + 1} for each in range(20)]
        files.append(write_policy(folder, gpus=gpus, quotas=quotas, idle={"after": f"{number + 1}h"}))
    only_quotas = write_policy(tmp_path, quotas=[{"user": "4711", "gpus": 7}])
    for _ in range(3):
        both = [machine.start("policy", "apply", "-f", file) for file in files]
        assert [each.wait(60) for each in both] == [0, 0]
        exported = tmp_path / "exported"
        machine.tranche("policy", "export", "-f", str(exported))
        told = [machine.json("policy", "apply", "-f", file, "--dry-run")["changes"] for file in files]
        assert [] in told, exported.read_text()
    with closing(sqlite3.connect(machine.ledger, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        late = [
            machine.start("policy", "fair", "--user", "4712", "--weight", "5"),
            machine.start("policy", "apply", "-f", only_quotas),
        ]
        time.sleep(2.0)  # both have read what there is
        other.execute("COMMIT")
        assert [each.wait(60) for each in late] == [0, 0]
    weights = {each["user"]: each["weight"] for each in machine.json("policy", "list")["quotas"]}
    assert weights == {None: 1, "4711": None, "4712": 5}


def test_a_file_that_cannot_be_applied_as_a_whole_changes_nothing(make_machine: MakeMachine, tmp_path: Path) -> None:
    machine = make_machine("T4")
    before = machine.json("policy", "list")
    quotas = [{"gpus": 1}]
    for sections, error in (
        ({"fence": True}, ServiceUnavailable),
        ({"fair": [{"user": "nobody-of-that-name", "weight": 2}]}, PolicyInvalid),
        ({"gpus": [{"gpu": 9, "sharing": "mig"}]}, GpuNotFound),
    ):
        path = write_policy(tmp_path, quotas=quotas, **sections)
        refused = machine.tranche("policy", "apply", "-f", path, code=error.exit_code).stderr
        assert error is ServiceUnavailable or path in refused
        assert machine.json("policy", "list") == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("set",), 2, "missing"),
        (("apply",), 2, "missing"),
        (("set", "sharing=fair"), 2, "'sharing=fair' is not a policy"),
        (("set", "--gpu", "9", "sharing=mig"), 23, "no GPU 9"),
        (("unset", "--gpu", "9"), 23, "no GPU 9"),
        (("apply", "-f", "/no/such/file"), 19, "/no/such/file"),
        (("apply", "-f", "FILE"), 19, "this is not a tranche.dev/v1 Policy"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_word_changes_nothing(
    make_machine: MakeMachine, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    machine = make_machine("T4")
    file = tmp_path / "file"
    file.write_text(json.dumps({"kind": "Policy"}))
    words = [str(file) if each == "FILE" else each for each in arguments]
    done = machine.tranche("policy", *words, code=code)
    assert message in done.stderr
    assert [each["saidFor"] for each in machine.json("policy", "list")["gpus"]] == ["nothing"]


def test_limits_of_users_are_set_listed_told_and_removed(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB")
    said = machine.tranche("policy", "quota", "--gpus", "1.5", "--gpu-memory", "40Gi", "--time", "90m").stderr
    assert said == "all users, except root: 1.5 GPUs, 40Gi of GPU memory, 1h30m for each command\n"
    twice = ("--user", "root", "--user", "4711", "--user", "0")
    assert machine.tranche("policy", "quota", *twice, "--shares", "3").stderr == (
        "root: 3 shares\n4711: 1.5 GPUs, 40Gi of GPU memory, 3 shares, 1h30m for each command\n"
    )
    said = machine.tranche("policy", "quota", "--user", "4711", "--gpus", "1").stderr
    assert said == "4711: 1 GPU, 40Gi of GPU memory, 3 shares, 1h30m for each command\n", "other limits stay"
    machine.tranche("policy", "quota", "--user", "4711", "--remove")
    machine.tranche("policy", "quota", *twice, "--shares", "2")
    more = {"gpuHours": None, "weight": None}
    nothing = dict.fromkeys(("gpuPercent", "memoryBytes", "timeLimitSeconds"))
    assert machine.json("policy", "list")["quotas"] == [
        {
            "user": None,
            "group": None,
            "gpuPercent": 150,
            "memoryBytes": 40 * 2**30,
            "shares": None,
            "timeLimitSeconds": 5400,
            **more,
        },
        {"user": "root", "group": None, **nothing, "shares": 2, **more},
        {"user": "4711", "group": None, **nothing, "shares": 2, **more},
    ]
    table = machine.tranche("policy", "list").stdout.splitlines()
    assert [line.split() for line in table[-3:]] == [
        ["(all)", "1.5", "40Gi", "-", "1h30m", "-", "-"],
        ["root", "-", "-", "2", "-", "-", "-"],
        ["4711", "-", "-", "2", "-", "-", "-"],
    ]
    assert machine.tranche("policy", "quota", "--user", "root", "--user", "4711", "--remove").stderr == (
        "root: no quota\n4711: the quota for all users, 1.5 GPUs, 40Gi of GPU memory, 1h30m for each command\n"
    )
    told = [each for each in machine.json("events")["events"] if each["type"] == "QuotaChanged"]
    assert [each["message"] for each in told] == [
        "all users: 1.5 GPUs, 40Gi of GPU memory, 1h30m for each command",
        "root: 3 shares",
        "4711: 3 shares",
        "4711: 1 GPU, 3 shares",
        "4711: no quota",
        "root: 2 shares",
        "4711: 2 shares",
        "root: no quota",
        "4711: no quota",
    ]
    assert told[5]["data"] == {
        "user": "root",
        "gpuPercent": None,
        "memoryBytes": None,
        "shares": 2,
        "timeLimitSeconds": None,
        "gpuHours": None,
        "weight": None,
    }


def test_a_fair_queue_and_limits_of_groups_are_set_listed_and_removed(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB")
    assert machine.tranche("policy", "fair").stderr == "requests from users with less GPU time are served first\n"
    said = machine.tranche("policy", "fair", "--user", "4711", "--group", "daemon", "--weight", "3").stderr
    assert said.splitlines() == ["4711: weight 3", "@daemon: weight 3"]
    said = machine.tranche("policy", "quota", "--group", "daemon", "--gpus", "2", "--gpu-hours", "40").stderr
    assert said == "@daemon: 2 GPUs, 40 GPU-hours in seven days, weight 3\n"
    listed = [(each["user"], each["group"], each["weight"]) for each in machine.json("policy", "list")["quotas"]]
    assert listed == [(None, None, 1), ("4711", None, 3), (None, "daemon", 3)]
    table = machine.tranche("policy", "list").stdout.splitlines()
    assert table[3] == "requests from users with less GPU time are served first"
    assert [line.split() for line in table[-3:]] == [
        ["(all)", "-", "-", "-", "-", "-", "1"],
        ["4711", "-", "-", "-", "-", "-", "3"],
        ["@daemon", "2", "-", "-", "-", "40", "3"],
    ]
    machine.tranche("policy", "quota", "--group", "daemon", "--remove")
    machine.tranche("policy", "quota", "--remove")
    quotas = machine.json("policy", "list")["quotas"]
    assert [(each["group"], each["gpuHours"], each["weight"]) for each in quotas][::2] == [
        (None, None, 1),
        ("daemon", None, 3),
    ]
    assert machine.tranche("policy", "fair", "--off", "--group", "gone").stderr.startswith("@gone: no weight\n")
    machine.tranche("policy", "quota", "--group", "gone", "--remove")
    said = machine.tranche("policy", "fair", "--off", "--group", "daemon").stderr
    assert said == "@daemon: no weight\n"
    assert len(machine.json("policy", "list")["quotas"]) == 2
    assert machine.tranche("policy", "fair", "--off").stderr == "requests are served in order of arrival\n"
    assert machine.json("policy", "list")["quotas"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--weight", "2"), "--weight must be used together with --user or --group"),
        (("--user", "root"), "--weight must be used together with --user or --group"),
        (("--off", "--weight", "2"), "--off cannot be combined with --weight"),
        (("--user", "root", "--weight", "0"), "'0' is not a whole number from 1 to 9999"),
        (("--user", "root", "--weight", "1.5"), "'1.5' is not a whole number from 1 to 9999"),
        (("--group", "no-such-group", "--weight", "2"), "this machine has no group 'no-such-group'"),
    ],
    ids=" ".join,
)
def test_a_wrong_weight_changes_nothing(make_machine: MakeMachine, arguments: tuple[str, ...], message: str) -> None:
    machine = make_machine("T4")
    assert message in machine.tranche("policy", "fair", *arguments, code=2).stderr
    assert machine.json("policy", "list")["quotas"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give at least one limit"),
        (("--remove", "--gpus", "1"), "--remove cannot be combined with limits"),
        (("--gpus", "all"), "'all' is not a number of GPUs"),
        (("--gpus", "1.005"), "'1.005' is not a number of GPUs up to 999999 with at most two decimals"),
        (("--gpu-memory", "40"), "has no unit"),
        (("--gpu-memory", "9223372037G"), "more GPU memory than any machine has"),
        (("--gpu-hours", "1.5"), "is not a whole number of GPU-hours"),
        (("--group", "daemon", "--time", "1h"), "--time cannot be set for a group"),
        (("--group", "no-such-group", "--gpus", "1"), "no group 'no-such-group'"),
        (("--shares", "99999999999999999999"), "is not a whole number of shares up to 999999"),
        (("--user", "4294967295", "--gpus", "1"), "no user '4294967295'"),
        (("--user", "nobody-of-that-name", "--gpus", "1"), "no user 'nobody-of-that-name'"),
    ],
    ids=" ".join,
)
def test_a_wrong_limit_changes_nothing(make_machine: MakeMachine, arguments: tuple[str, ...], message: str) -> None:
    machine = make_machine("T4")
    assert message in machine.tranche("policy", "quota", *arguments, code=2).stderr
    assert machine.json("policy", "list")["quotas"] == []


def test_a_whole_gpu_counts_with_its_memory_after_the_driver_has_lost_it(two_a100: TestMachine) -> None:
    two_a100.tranche("policy", "quota", "--user", "root", "--gpu-memory", "41Gi")
    two_a100.hold("--gpus", "1")
    two_a100.machine.inject_lost(0)
    refused = two_a100.tranche("run", "--no-wait", "--gpu-memory", "8G", "--", "true", code=NoRoom.exit_code).stderr
    assert "the user may hold at most 41 GiB at once, already holds 39.5 GiB, and this request needs" in refused


def test_a_changed_quota_ends_a_waiting_request_that_became_too_large(two_a100: TestMachine) -> None:
    two_a100.tranche("policy", "quota", "--user", "root", "--gpus", "2")
    two_a100.hold("--gpus", "1")
    waiter = two_a100.wait_in_queue("--gpus", "2")
    two_a100.tranche("policy", "quota", "--user", "root", "--gpus", "1")
    assert waiter.wait(60) == QuotaExceeded.exit_code


def test_the_policy_for_idle_shares_is_set_listed_and_taken_back(make_machine: MakeMachine) -> None:
    machine = make_machine("T4")
    default = {"afterSeconds": 1800, "endsHolds": False}
    assert machine.json("policy", "list")["idle"] == default
    assert machine.tranche("policy", "idle", "--after", "45m", "--end").stderr == "an idle hold ends after 45m\n"
    assert machine.json("policy", "list")["idle"] == {"afterSeconds": 2700, "endsHolds": True}
    assert machine.tranche("policy", "list").stdout.endswith("\nan idle hold ends after 45m\n")
    assert machine.tranche("policy", "idle", "--after", "1h").stderr == "a share counts as idle after 1h\n"
    assert machine.json("policy", "list")["idle"]["endsHolds"] is False
    machine.tranche("policy", "idle", "--off")
    assert machine.json("policy", "list")["idle"] == default


@pytest.mark.parametrize(
    "words", [(), ("--off", "--end"), ("--off", "--after", "1h"), ("--after", "9m"), ("--after", "x")]
)
def test_a_wrong_policy_for_idle_shares_is_refused(make_machine: MakeMachine, words: tuple[str, ...]) -> None:
    make_machine("T4").tranche("policy", "idle", *words, code=2)
