"""Applying layouts on simulated machines, through the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.layout.conftest import Bench, cut_of, cuts
from tests.machines import wait_until
from tranche.core.state import MigMode, NodeState

MakeBench = Callable[..., Bench]

IN_USE, INSUFFICIENT_RESOURCES, UNKNOWN = 19, 23, 999


def names(gpu_cut: dict[str, str]) -> Counter[str]:
    return Counter(place.split(" ")[0] for place in gpu_cut.values())


def saved_plan(b: Bench, layout: str) -> str:
    planned = b.layout("plan", "-c", layout, "-o", "json")
    assert planned.code == 0, planned.stderr
    return b.file(planned.stdout, "plan.json")


def balanced_with_a_busy_slice(bench: MakeBench) -> tuple[Bench, NodeState, str]:
    """A p5 cut all-balanced, what it is then, and the UUID of a 1g slice of GPU 2 that a trainer uses."""
    b = bench("p5.48xlarge")
    b.apply("-c", "all-balanced")
    before = b.observe()
    busy = next(uuid for uuid, place in cut_of(before.gpus[2]).items() if place.startswith("1g.10gb"))
    b.machine.inject_busy(busy, pid=5004711, name="trainer")
    return b, before, busy


def test_all_balanced_on_a_p5_twice(bench: MakeBench) -> None:
    b = bench("p5.48xlarge")
    first = b.apply("-c", "all-balanced")
    assert "MIG configuration applied successfully" in first.stderr
    assert first.stdout == ""
    node = b.observe()
    assert [names(cut) for cut in cuts(node)] == [Counter({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})] * 8
    calls = b.machine.change_calls()
    second = b.apply("-c", "all-balanced")
    assert "MIG configuration applied successfully" in second.stderr
    assert b.machine.change_calls() == calls, "a layout that is there makes no call that changes anything"
    assert cuts(b.observe()) == cuts(node)


def test_a_busy_slice_that_the_layout_lacks_refuses_by_name_and_changes_nothing(bench: MakeBench) -> None:
    b, before, busy = balanced_with_a_busy_slice(bench)
    calls = b.machine.change_calls()
    refused = b.layout("apply", "-c", "all-2g.20gb")
    assert refused.code == 80
    assert f"GPU 2 ({busy}) is in use by trainer (pid 5004711)" in refused.stderr
    assert "GPU 1 " not in refused.stderr
    assert b.machine.change_calls() == calls
    assert cuts(b.observe()) == cuts(before)


def test_a_busy_slice_that_the_layout_has_is_worked_around(bench: MakeBench) -> None:
    b, before, busy = balanced_with_a_busy_slice(bench)
    b.apply("-c", "all-1g.10gb")
    after = b.observe()
    assert [names(cut) for cut in cuts(after)] == [Counter({"1g.10gb": 7})] * 8
    assert cut_of(after.gpus[2])[busy] == cut_of(before.gpus[2])[busy]
    for old, new in zip(cuts(before), cuts(after), strict=True):
        stayed = {uuid: place for uuid, place in old.items() if place.startswith("1g.10gb")}
        assert stayed.items() <= new.items(), "both 1g slices of every GPU stay"


def test_only_what_differs_is_touched(bench: MakeBench) -> None:
    b = bench("p5.48xlarge")
    b.apply("-c", "all-balanced")
    before, calls = cuts(b.observe()), b.machine.change_calls()
    path = b.file(
        "version: v1\n"
        "mig-configs:\n"
        "  x:\n"
        "  - devices: [3]\n"
        "    mig-enabled: true\n"
        "    mig-devices: {1g.10gb: 4, 3g.40gb: 1}\n"
    )
    outcome = b.apply("-f", path)
    assert "destroyed 1 instance, created 2 instances, kept 3 instances" in outcome.stderr
    after = cuts(b.observe())
    assert [i for i in range(8) if after[i] != before[i]] == [3]
    made = Counter(b.machine.change_calls()) - Counter(calls)
    assert made["nvmlGpuInstanceDestroy"] == 1
    assert made["nvmlDeviceSetMigMode"] == 0


def test_on_ampere_only_gpus_whose_mode_changes_are_reset(bench: MakeBench) -> None:
    b = bench(boards=("A100-40GB",) * 3)
    b.apply("-c", "all-3g.20gb")
    before = cuts(b.observe())
    off = "version: v1\nmig-configs: {x: [{devices: [1], mig-enabled: no}]}\n"
    b.apply("-f", b.file(off))
    node = b.observe()
    assert [gpu.mode for gpu in node] == [MigMode.ENABLED, MigMode.DISABLED, MigMode.ENABLED]
    assert cuts(node) == [before[0], {}, before[2]], "a reset would have taken the slices of the others"


def test_skipping_the_reset_leaves_the_mode_pending_and_fails(bench: MakeBench) -> None:
    b = bench(boards=("A100-40GB",))
    outcome = b.layout("apply", "-c", "all-3g.20gb", "--skip-reset")
    assert outcome.code == 25
    assert "is pending because resets are skipped" in outcome.stderr
    gpu = b.observe().gpus[0]
    assert (gpu.mode, gpu.pending_mode) == (MigMode.DISABLED, MigMode.ENABLED)
    assert b.layout("apply", "-c", "all-3g.20gb", "-s", "-m").code == 0
    b.apply("-c", "all-3g.20gb")
    assert names(cut_of(b.observe().gpus[0])) == Counter({"3g.20gb": 2})


def test_mode_only_switches_and_cuts_nothing(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-1g.10gb", "--mode-only")
    gpu = b.observe().gpus[0]
    assert gpu.mig_enabled
    assert not gpu.instances
    assert b.layout("assert", "-c", "all-1g.10gb", "--mode-only").code == 0
    assert b.layout("assert", "-c", "all-1g.10gb").code == 50


@pytest.mark.parametrize(
    "function", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]
)
def test_a_failure_is_undone_everywhere(bench: MakeBench, function: str) -> None:
    b = bench(boards=("H100-80GB-SXM",) * 3)
    b.apply("-c", "all-balanced")
    before = cuts(b.observe())
    b.machine.inject_error(function, INSUFFICIENT_RESOURCES, calls=1, gpu=1)
    outcome = b.layout("apply", "-c", "all-3g.40gb")
    assert outcome.code not in (0, 1)
    assert "GPU 1 (" in outcome.stderr
    assert cuts(b.observe()) == before, "the same slices with the same UUIDs"
    b.apply("-c", "all-3g.40gb")
    assert [names(cut) for cut in cuts(b.observe())] == [Counter({"3g.40gb": 2})] * 3


def test_a_failure_after_the_mode_change_puts_the_mode_back(bench: MakeBench) -> None:
    b = bench(boards=("A100-40GB", "H100-80GB-SXM"))
    b.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN, calls=1, gpu=1)
    assert b.layout("apply", "-c", "all-balanced").code == 21
    assert [(gpu.mode, gpu.pending_mode) for gpu in b.observe()] == [(MigMode.DISABLED, MigMode.DISABLED)] * 2


def test_without_permission_nothing_is_changed(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    outcome = b.layout("apply", "-c", "all-balanced", TRANCHE_SIM_UNPRIVILEGED="1")
    assert outcome.code == 22
    assert not b.observe().gpus[0].mig_enabled


def test_a_dry_run_prints_the_steps_and_changes_nothing(bench: MakeBench) -> None:
    b = bench(boards=("A100-40GB",))
    outcome = b.layout("apply", "-c", "all-3g.20gb", "--dry-run")
    assert outcome.code == 0
    assert outcome.stdout.splitlines() == [
        "GPU  STEP",
        "0    enable MIG mode",
        "0    reset the GPU",
        "0    create 3g.20gb at 0:4",
        "0    create 3g.20gb at 4:4",
    ]
    assert b.machine.total_change_calls() == 0
    assert "applied" not in outcome.stderr


def test_a_saved_plan_is_carried_out_once_and_refused_when_the_state_moved(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",) * 2)
    planned = b.layout("plan", "-c", "all-balanced", "-o", "json")
    assert planned.data["kind"] == "Plan"
    saved = b.file(planned.stdout, "plan.json")
    b.apply("--plan", saved)
    assert [names(cut) for cut in cuts(b.observe())] == [Counter({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})] * 2
    calls = b.machine.change_calls()
    again = b.layout("apply", "--plan", saved)
    assert again.code == 51
    assert b.machine.change_calls() == calls


def test_a_saved_plan_does_not_take_what_has_come_into_use(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-balanced")
    saved = saved_plan(b, "all-3g.40gb")
    busy = next(iter(cut_of(b.observe().gpus[0])))
    for uuid in cut_of(b.observe().gpus[0]):
        b.machine.inject_busy(uuid, pid=5004711, name="trainer")
    calls = b.machine.change_calls()
    refused = b.layout("apply", "--plan", saved)
    assert refused.code == 80
    assert busy in refused.stderr or "trainer (pid 5004711)" in refused.stderr
    assert b.machine.change_calls() == calls


def test_a_saved_plan_whose_state_moved_is_not_waited_for(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-balanced")
    saved = saved_plan(b, "all-disabled")
    b.apply("-c", "all-7g.80gb")
    (uuid,) = cut_of(b.observe().gpus[0])
    b.machine.inject_busy(uuid, pid=5004711, name="trainer")
    assert b.layout("apply", "--plan", saved, "--wait").code == 51


def test_two_changes_of_one_gpu_do_not_mix(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 1.5)
    first = subprocess.Popen(
        b.command("apply", "-c", "all-1g.10gb"),
        env=b.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert first.stderr is not None
        assert first.stderr.readline().startswith("step "), "it is at work"
        refused = b.layout("apply", "-c", "all-balanced")
        assert refused.code == 80
        assert "another change of layout" in refused.stderr
        b.machine.clear_injections()
        waited = b.layout("apply", "-c", "all-balanced", "--wait")
        assert waited.code == 0, waited.stderr
        assert first.wait(timeout=60) == 0
    finally:
        if first.poll() is None:
            first.kill()
            first.wait()
        if first.stderr is not None:
            first.stderr.close()
    assert names(cut_of(b.observe().gpus[0])) == Counter({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})


@pytest.mark.parametrize("boards", [("H100-80GB-SXM",), ("H100-80GB-SXM", "H100-80GB-SXM")], ids=len)
def test_a_change_that_is_told_to_end_is_undone_before_the_command_ends(
    bench: MakeBench, boards: tuple[str, ...]
) -> None:
    b = bench(boards=boards)
    b.apply("-c", "all-balanced")
    before = cuts(b.observe())
    b.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 0.8)
    with subprocess.Popen(
        b.command("apply", "-c", "all-1g.10gb"),
        env=b.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as ended:
        assert ended.stderr is not None
        assert ended.stderr.readline().startswith("step ")
        ended.send_signal(signal.SIGTERM)
        said = ended.stderr.read()
    assert (ended.returncode, said.splitlines()[-1]) == (143, "interrupted: the change has been undone")
    assert cuts(b.observe()) == before


def ended_by_sigterm(b: Bench, *arguments: str, at: Callable[[], bool]) -> tuple[int, str]:
    """The exit code and the last words of an apply that is told to end as soon as `at` holds."""
    with subprocess.Popen(
        b.command("apply", *arguments),
        env=b.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as ended:
        wait_until(at, ended)
        ended.send_signal(signal.SIGTERM)
        assert ended.stderr is not None
        said = ended.stderr.read()
    return ended.returncode, said.splitlines()[-1]


def test_a_change_that_is_told_to_end_when_it_is_made_stays_and_says_so(bench: MakeBench, tmp_path: Path) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    begun, hooks = tmp_path / "begun", tmp_path / "hooks.yaml"
    script = f"touch {begun}; sleep 2"
    hooks.write_text(
        f"version: v1\nhooks:\n  apply-exit:\n  - workdir: /tmp\n    command: /bin/sh\n    args: ['-c', '{script}']\n"
    )
    found = ended_by_sigterm(b, "-c", "all-balanced", "--hooks-file", str(hooks), at=begun.exists)
    assert found == (143, "interrupted: the change had already been made")
    assert names(cut_of(b.observe().gpus[0])) == Counter({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})


def test_what_an_interrupted_change_cannot_undo_is_said(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-enabled")
    b.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 1)
    b.machine.inject_error("nvmlComputeInstanceDestroy", 999, calls=100)
    code, said = ended_by_sigterm(b, "-c", "all-1g.10gb", at=lambda: len(cut_of(b.observe().gpus[0])) >= 2)
    assert (code, said.startswith("interrupted: undoing the change failed, so parts of it remain: ")) == (143, True), (
        said
    )


def test_a_killed_change_is_undone_by_the_next_command(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-balanced")
    before = cuts(b.observe())
    b.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 1.5)
    killed = subprocess.Popen(
        b.command("apply", "-c", "all-1g.10gb"),
        env=b.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert killed.stderr is not None
    assert killed.stderr.readline().startswith("step ")
    killed.kill()
    killed.wait()
    killed.stderr.close()
    b.machine.clear_injections()
    assert b.layout("plan", "-c", "all-balanced").stdout == ""
    assert cuts(b.observe()) == before


@pytest.mark.parametrize("text", ["{}", "nonsense: [", '{"apiVersion": "tranche.dev/v1", "kind": "Plan"}'])
def test_what_is_no_plan_is_refused(bench: MakeBench, text: str) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    assert b.layout("apply", "--plan", "-", stdin=text).code == 15


def test_plan_and_layout_options_exclude_each_other_but_not_by_environment(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    saved = saved_plan(b, "all-balanced")
    assert b.layout("apply", "--plan", saved, "-c", "all-balanced").code == 2
    assert b.layout("apply", "--plan", saved, MIG_PARTED_SELECTED_CONFIG="all-disabled").code == 0
    assert names(cut_of(b.observe().gpus[0]))["3g.40gb"] == 1


def test_waiting_until_what_is_in_use_ends(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-balanced")
    busy = next(iter(cut_of(b.observe().gpus[0])))
    b.machine.inject_busy(busy, pid=5004711, name="trainer")
    waiting = subprocess.Popen(
        b.command("apply", "-c", "all-7g.80gb", "--wait"),
        env=b.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert waiting.stderr is not None
        assert "trainer (pid 5004711)" in waiting.stderr.readline()
        b.machine.clear_injections()
        said = waiting.stderr.read()
        assert waiting.wait(timeout=60) == 0, said
    finally:
        if waiting.poll() is None:
            waiting.kill()
            waiting.wait()
        if waiting.stderr is not None:
            waiting.stderr.close()
    assert names(cut_of(b.observe().gpus[0])) == Counter({"7g.80gb": 1})


def test_waiting_gives_up_in_the_end(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-balanced")
    b.machine.inject_busy(next(iter(cut_of(b.observe().gpus[0]))), pid=5004711, name="trainer")
    calls = b.machine.change_calls()
    outcome = b.layout("apply", "-c", "all-7g.80gb", "--wait", "--timeout", "0.1")
    assert outcome.code == 70
    assert "trainer (pid 5004711)" in outcome.stderr
    assert b.machine.change_calls() == calls
    assert b.layout("apply", "-c", "all-7g.80gb", "--timeout", "1").code == 2


def test_json_on_stdout_tells_what_was_done(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-1g.10gb")
    outcome = b.apply("-c", "all-balanced", "-o", "json")
    assert outcome.data["apiVersion"] == "tranche.dev/v1"
    assert outcome.data["kind"] == "LayoutApplied"
    (gpu,) = outcome.data["gpus"]
    assert [kept["profile"] for kept in gpu["kept"]] == ["1g.10gb", "1g.10gb"]
    shown = cut_of(b.observe().gpus[0])
    assert {uuid for kept in gpu["kept"] for uuid in kept["migDevices"]} <= set(shown)


def test_compute_slices(bench: MakeBench) -> None:
    b = bench(boards=("A100-40GB",))
    text = {
        "version": "v1",
        "mig-configs": {
            "x": [
                {
                    "devices": "all",
                    "mig-enabled": True,
                    "mig-devices": {"1c.3g.20gb": 2, "2c.3g.20gb": 2, "1g.5gb": 0},
                }
            ]
        },
    }
    assert b.layout("apply", "-f", "-", stdin=json.dumps(text)).code == 0
    gpu = b.observe().gpus[0]
    assert [sorted(map(str, instance.slices)) for instance in gpu.instances] == [["1c.3g.20gb", "2c.3g.20gb"]] * 2
    calls = b.machine.change_calls()
    assert b.layout("apply", "-f", "-", stdin=json.dumps(text)).code == 0
    assert b.machine.change_calls() == calls


def test_gpus_without_mig_are_passed_over_or_an_error(bench: MakeBench) -> None:
    b = bench(boards=("Tesla T4", "H100-80GB-SXM"))
    b.apply("-c", "all-balanced")
    assert names(cut_of(b.observe().gpus[1]))["3g.40gb"] == 1
    named = "version: v1\nmig-configs: {x: [{devices: [0], mig-enabled: true, mig-devices: {}}]}\n"
    outcome = b.layout("apply", "-f", "-", stdin=named)
    assert outcome.code == 24
    assert "cannot set MIG mode on non MIG-capable GPU 0" in outcome.stderr


def test_a_share_that_runs_is_not_taken(bench: MakeBench) -> None:
    b = bench(boards=("H100-80GB-SXM",))
    b.apply("-c", "all-balanced")
    run = b.command()[:-1]
    child = subprocess.Popen(
        [*run, "run", "--mig-profile", "2g.20gb", "-q", "--", "sh", "-c", "echo ready; read line"],
        env=b.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        refused = b.layout("apply", "-c", "all-disabled")
        assert refused.code == 80
        assert "2g.20gb at" in refused.stderr
        assert "allocation" in refused.stderr
    finally:
        child.communicate("\n", timeout=60)
    assert child.returncode == 0
    b.apply("-c", "all-disabled")
    assert not b.observe().gpus[0].mig_enabled
