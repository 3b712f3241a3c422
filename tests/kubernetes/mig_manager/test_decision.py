"""The MIG manager's decisions against a world that fails, kills and interferes: they always end well, or say why not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.kubernetes.mig_manager.mig_world import OPERANDS, Killed, World, a100s, cut, gpu, profiles
from tests.strategies import uncuttable_gpu, view_of
from tests.support.length import cases
from tranche.core.errors import HardwareError, KubeletUnavailable
from tranche.core.state import MigMode
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.mig_manager.decision import LayoutTask, NodeDecision, decide, pods_that_matter
from tranche.kubernetes.mig_manager.drain import CORDON_ANNOTATION, InUsePolicy
from tranche.kubernetes.mig_manager.operands import PAUSED, SINCE_ANNOTATION
from tranche.kubernetes.mig_manager.state import ATTEMPT_ANNOTATION, LAYOUT_LABEL, REASON_LABEL, STATE_LABEL

TWO_HALVES = "version: v1\nmig-configs: {halves: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]}"
ONE_HALF = "version: v1\nmig-configs: {halves: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1}}]}"


def shown(world: World) -> tuple[str | None, str | None]:
    return world.labels.get(STATE_LABEL), world.labels.get(REASON_LABEL)


def until_failed(world: World) -> None:
    """Look every second, until the node shows a failure; at most 400 times."""
    for _ in range(400):
        world.round()
        world.time_passes(1)
        if world.labels[STATE_LABEL] == "failed":
            return


def until_it_waits(world: World) -> NodeDecision:
    """Rounds until one asks for patience."""
    for _ in range(20):
        decision = world.round()
        if decision.look_again is not None:
            return decision
    raise AssertionError("it never waits")


def test_a_label_becomes_a_cut_and_the_state_pending_and_then_success() -> None:
    world = World(a100s(mode=MigMode.DISABLED))
    world.wish("all-balanced")
    first = world.round()
    assert (shown(world), first.work) == (("pending", "Applying"), LayoutTask.CUT)
    world.settle()
    assert shown(world) == ("success", None)
    assert profiles(world, 0) == profiles(world, 1) == ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]


def test_without_a_label_nothing_is_done_and_nothing_is_said() -> None:
    world = World(a100s())
    decision = world.settle()
    assert decision.report is None
    assert (world.labels, world.annotations, world.cuts) == ({}, {}, 0)


def test_a_removed_label_takes_the_words_about_it_along_and_leaves_the_gpus() -> None:
    world = World(a100s())
    cut(world, "all-1g.5gb")
    world.wish(None)
    world.settle()
    assert world.labels == {}
    assert len(profiles(world)) == 7


@pytest.mark.parametrize(
    ("config_map", "layout", "reason"),
    [
        (None, "all-9g.5gb", "LayoutUnknown"),
        ("version: v2", "all-1g.5gb", "LayoutInvalid"),
        ("{", "all-1g.5gb", "LayoutInvalid"),
        (TWO_HALVES.replace(": 2}", ": 3}"), "halves", "LayoutImpossible"),
        (TWO_HALVES.replace(": 2}", ": 999999999999999999999}"), "halves", "LayoutImpossible"),
        (TWO_HALVES.replace("3g.20gb", "3g.40gb"), "halves", "ProfileNotSupported"),
        (TWO_HALVES.replace("devices: all", "devices: [5]"), "halves", "GpuNotFound"),
        (TWO_HALVES.replace("{devices", "{device-filter: '0x233010DE', devices"), "halves", "GpuNotFound"),
    ],
)
def test_a_layout_that_cannot_be_is_failed_with_its_reason_and_heals_when_it_is_corrected(
    config_map: str | None, layout: str, reason: str
) -> None:
    world = World(a100s(), config_map=config_map)
    world.wish(layout)
    decision = world.settle()
    assert shown(world) == ("failed", reason)
    assert decision.report is not None
    assert decision.report.condition.reason == reason
    assert world.cuts == 0
    world.config_map = TWO_HALVES
    world.wish("halves")
    world.settle()
    assert shown(world) == ("success", None)


def test_a_machine_without_mig_has_all_disabled_and_cannot_have_more() -> None:
    everything_on = "version: v1\nmig-configs: {on: [{devices: all, mig-enabled: true, mig-devices: {}}]}"
    world = World(view_of(uncuttable_gpu()), config_map=everything_on)
    for layout, state in [
        ("all-1g.5gb", ("failed", "MigNotSupported")),
        ("all-disabled", ("success", None)),
        ("on", ("failed", "MigNotSupported")),
    ]:
        world.wish(layout)
        world.settle()
        assert shown(world) == state


def test_a_lost_gpu_leaves_the_node_failed_with_the_others_cut_and_heals_when_it_is_back() -> None:
    world = World(a100s())
    whole = world.view
    lost = replace(
        whole.node.gpus[1], lost=True, mode=MigMode.UNSUPPORTED, pending_mode=MigMode.UNSUPPORTED, profiles=()
    )
    world.view = replace(whole, node=replace(whole.node, gpus=(whole.node.gpus[0], lost)))
    world.wish("all-1g.5gb")
    decision = world.settle()
    assert shown(world) == ("failed", "HardwareError")
    assert decision.report is not None
    assert "GPU 1" in decision.report.message
    assert "all other GPUs match the layout" in decision.report.message
    assert profiles(world, 0) == ["1g.5gb"] * 7
    assert world.labels.keys().isdisjoint(OPERANDS), "operands run again"
    world.view = replace(world.view, node=replace(world.view.node, gpus=(world.view.node.gpus[0], whole.node.gpus[1])))
    world.settle()
    assert shown(world) == ("success", None)
    assert profiles(world, 1) == ["1g.5gb"] * 7


def test_an_edited_config_map_is_applied() -> None:
    world = World(a100s(1), config_map=TWO_HALVES)
    cut(world, "halves")
    world.config_map = ONE_HALF
    world.settle()
    assert (shown(world), profiles(world)) == (("success", None), ["3g.20gb"])


def test_what_is_in_use_is_waited_for_while_the_rest_is_cut_and_nothing_that_goes_is_given_away() -> None:
    world = World(a100s(2))
    cut(world, "all-1g.5gb")
    pod = world.start_pod("a", 0, 0)
    assert pod is not None
    world.wish("all-3g.20gb")
    decision = world.settle()
    assert shown(world) == ("pending", "GpuBusy")
    assert decision.report is not None
    assert "pod default/a" in decision.report.message
    assert profiles(world, 1) == ["3g.20gb", "3g.20gb"]
    assert profiles(world, 0) == ["1g.5gb", "3g.20gb"], "the half beside the pod is not cut yet"
    assert world.start_pod("b", 0, 0) is None, "a slice that is to go was given away"
    world.end_pod(pod)
    world.settle()
    assert (shown(world), profiles(world, 0)) == (("success", None), ["3g.20gb", "3g.20gb"])


def test_pods_in_slices_that_stay_are_in_nobodys_way() -> None:
    layout = "version: v1\nmig-configs: {l: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1, 1g.5gb: 4}}]}"
    world = World(a100s(1), config_map=layout)
    cut(world, "all-balanced")
    three = next(i for i in world.view.node.by_index(0).instances if i.profile.slices == 3)
    pod = world.start_pod("a", 0, three.placement.start)
    assert pod is not None
    cut(world, "l")
    assert (shown(world), profiles(world)) == (("success", None), ["1g.5gb"] * 4 + ["3g.20gb"])
    assert world.view.node.by_index(0).instance_at(three.placement) is three


def test_refuse_changes_nothing_at_all_and_heals_when_the_pod_ends() -> None:
    world = World(a100s(2), policy=InUsePolicy.REFUSE)
    cut(world, "all-1g.5gb")
    pod = world.start_pod("a", 0, 0)
    assert pod is not None
    cuts = world.cuts
    world.wish("all-3g.20gb")
    world.settle()
    assert (shown(world), world.cuts, world.draining) == (("failed", "GpuBusy"), cuts, frozenset())
    world.end_pod(pod)
    world.settle()
    assert shown(world) == ("success", None)


def test_drain_cordons_evicts_only_who_is_in_the_way_and_uncordons() -> None:
    world = World(a100s(2), policy=InUsePolicy.DRAIN)
    cut(world, "all-balanced")
    starts = {i.profile.slices: i.placement.start for i in world.view.node.by_index(0).instances}
    in_the_way, beside = world.start_pod("a", 0, starts[2]), world.start_pod("b", 0, starts[3])
    assert in_the_way is not None
    assert beside is not None
    world.config_map = ONE_HALF
    world.wish("halves")
    for _ in range(5):
        world.round()
    assert world.unschedulable
    assert CORDON_ANNOTATION in world.annotations
    world.settle()
    assert shown(world) == ("success", None)
    assert (in_the_way in world.pods, beside in world.pods) == (False, True)
    assert (world.unschedulable, CORDON_ANNOTATION in world.annotations) == (False, False)


def test_a_node_stays_cordoned_until_the_kubelet_has_freed_what_an_evicted_pod_had() -> None:
    world = World(a100s(1), policy=InUsePolicy.DRAIN)
    cut(world, "all-1g.5gb")
    pod = world.start_pod("a", 0, 0)
    assert pod is not None
    world.wish("all-7g.40gb")
    until_it_waits(world)
    world.round()
    assert world.pods[pod].terminating
    world.pods[pod] = replace(world.pods[pod], phase="Failed")
    for forgotten in (False, True):
        if forgotten:
            del world.pods[pod]
        for _ in range(3):
            world.round()
        assert (shown(world), world.unschedulable) == (("pending", "GpuBusy"), True), f"{forgotten=}"
    world.end_pod(pod)
    world.settle()
    assert (shown(world), world.unschedulable, world.annotations) == (("success", None), False, {})


def test_a_node_is_not_cordoned_for_a_pod_of_which_the_api_server_has_not_told() -> None:
    world = World(a100s(1), policy=InUsePolicy.DRAIN)
    cut(world, "all-1g.5gb")
    pod = world.start_pod("a", 0, 0)
    assert pod is not None
    told = world.pods.pop(pod)
    world.wish("all-7g.40gb")
    world.settle()
    assert (shown(world), world.unschedulable) == (("pending", "GpuBusy"), False)
    world.pods[pod] = told
    world.settle()
    assert (shown(world), world.unschedulable) == (("success", None), False)


def test_a_drain_that_is_called_off_uncordons_whatever_is_left_of_the_evicted_pod() -> None:
    world = World(a100s(1), policy=InUsePolicy.DRAIN)
    cut(world, "all-1g.5gb")
    pod = world.start_pod("a", 0, 0)
    assert pod is not None
    world.wish("all-7g.40gb")
    until_it_waits(world)
    del world.pods[pod]
    world.policy = InUsePolicy.WAIT
    world.settle()
    assert (shown(world), world.unschedulable, world.annotations) == (("pending", "GpuBusy"), False, {})


@pytest.mark.parametrize("killed_round", range(8))
def test_a_drain_that_is_killed_at_any_write_ends_uncordoned(killed_round: int) -> None:
    for killed_after in count():
        world = World(a100s(1), policy=InUsePolicy.DRAIN)
        cut(world, "all-1g.5gb")
        world.start_pod("a", 0, 0)
        world.wish("all-7g.40gb")
        killed = False
        for number in range(8):
            try:
                decision = world.round(kill_after=killed_after if number == killed_round else None)
            except Killed:
                killed = True
            else:
                world.time_passes(decision.look_again or 0)
        world.settle()
        assert (shown(world), world.unschedulable, world.annotations) == (("success", None), False, {})
        if not killed:
            assert killed_after >= 4
            return


def test_drain_respects_a_disruption_budget_and_says_so() -> None:
    world = World(a100s(1), policy=InUsePolicy.DRAIN)
    cut(world, "all-1g.5gb")
    pod = world.start_pod("a", 0, 0)
    assert pod is not None
    world.protected.add(pod)
    world.wish("all-7g.40gb")
    for _ in range(10):
        decision = world.round()
        world.time_passes(5)
    assert (shown(world), world.unschedulable) == (("pending", "GpuBusy"), True)
    assert decision.report is not None
    assert "a budget" in decision.report.message
    world.protected.clear()
    world.settle()
    assert (shown(world), world.unschedulable) == (("success", None), False)


def test_a_node_that_an_admin_has_cordoned_stays_cordoned() -> None:
    world = World(a100s(1), policy=InUsePolicy.DRAIN)
    cut(world, "all-1g.5gb")
    world.start_pod("a", 0, 0)
    world.unschedulable = True
    cut(world, "all-7g.40gb")
    assert (shown(world), world.unschedulable) == (("success", None), True)


def test_a_pod_of_a_daemon_set_is_not_evicted_and_the_node_not_cordoned_for_it() -> None:
    world = World(a100s(1), policy=InUsePolicy.DRAIN)
    cut(world, "all-1g.5gb")
    pod = world.start_pod("a", 0, 0, owner="DaemonSet")
    assert pod is not None
    world.wish("all-7g.40gb")
    world.settle()
    assert (shown(world), world.unschedulable, pod in world.pods) == (("pending", "GpuBusy"), False, True)


def test_operands_are_stopped_before_the_cut_and_run_again_after_it() -> None:
    world = World(a100s(1), labels=dict.fromkeys(OPERANDS, "true"), operand_pods=set(OPERANDS.values()))
    world.labels["nvidia.com/gpu.deploy.nvsm"] = "false"
    world.wish("all-1g.5gb")
    first = world.round()
    assert (first.work, shown(world)) == (LayoutTask.NONE, ("pending", "WaitingForOperands"))
    assert all(world.labels[key] == PAUSED for key in OPERANDS)
    world.settle()
    assert shown(world) == ("success", None)
    assert all(world.labels[key] == "true" for key in OPERANDS)
    assert world.labels["nvidia.com/gpu.deploy.nvsm"] == "false"
    assert SINCE_ANNOTATION not in world.annotations


def test_operands_that_do_not_stop_end_in_failed_and_run_on() -> None:
    world = World(
        a100s(1), labels=dict.fromkeys(OPERANDS, "true"), operand_pods=set(OPERANDS.values()), stubborn_operands=True
    )
    world.wish("all-1g.5gb")
    until_failed(world)
    assert shown(world) == ("failed", "OperandsStillRunning")
    assert (world.cuts, [world.labels[key] for key in OPERANDS]) == (0, ["true", "true"])
    world.stubborn_operands = False
    world.settle()
    assert shown(world) == ("success", None)


@pytest.mark.parametrize("since", ["9e15", "nan", "9e15@boot-0", "1@another-boot"])
def test_operands_that_do_not_stop_end_in_failed_also_when_it_cannot_be_told_since_when_they_are_paused(
    since: str,
) -> None:
    world = World(
        a100s(1),
        labels=dict.fromkeys(OPERANDS, PAUSED),
        annotations={SINCE_ANNOTATION: since},
        operand_pods=set(OPERANDS.values()),
        stubborn_operands=True,
    )
    world.wish("all-1g.5gb")
    until_failed(world)
    assert shown(world) == ("failed", "OperandsStillRunning")


def test_operands_that_somebody_left_paused_are_set_free() -> None:
    world = World(a100s(1), labels=dict.fromkeys(OPERANDS, PAUSED))
    world.settle()
    assert [world.labels[key] for key in OPERANDS] == ["true", "true"]


def test_a_failure_is_tried_again_ever_more_rarely_and_clears_itself() -> None:
    world = World(a100s(1), fails=True, labels=dict.fromkeys(OPERANDS, "true"))
    world.wish("all-1g.5gb")
    waits: list[int] = []
    for _ in range(100):
        decision = world.round()
        if shown(world) == ("failed", "HardwareError"):
            assert [world.labels[key] for key in OPERANDS] == ["true", "true"]
            waits += [round(decision.look_again)] if decision.look_again else []
        world.time_passes(decision.look_again or 0)
    assert waits[:9] == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    world.fails = False
    world.settle()
    assert (shown(world), ATTEMPT_ANNOTATION in world.annotations) == (("success", None), False)


@pytest.mark.parametrize(
    ("policy", "state"), [(InUsePolicy.WAIT, "pending"), (InUsePolicy.DRAIN, "pending"), (InUsePolicy.REFUSE, "failed")]
)
def test_a_process_that_comes_at_the_last_moment_is_waited_for_with_the_patience_of_a_failure(
    policy: InUsePolicy, state: str
) -> None:
    world = World(a100s(1), busy=True, policy=policy)
    world.wish("all-1g.5gb")
    decision = until_it_waits(world)
    assert (shown(world), world.cuts) == ((state, "GpuBusy"), 0)
    assert decision.look_again == 5
    world.busy = False
    world.settle()
    assert shown(world) == ("success", None)


def test_what_a_pending_layout_will_take_stays_marked_between_its_tries_and_a_failed_one_takes_nothing() -> None:
    for failing, marked in (("busy", 7), ("fails", 0)):
        world = World(a100s(1))
        cut(world, "all-1g.5gb")
        setattr(world, failing, True)
        world.wish("all-7g.40gb")
        until_it_waits(world)
        assert len(world.draining) == marked, failing


def test_a_changed_wish_is_tried_at_once_after_a_failure() -> None:
    world = World(a100s(1), fails=True)
    world.wish("all-1g.5gb")
    until_it_waits(world)
    world.fails = False
    world.wish("all-2g.10gb")
    assert world.round().work is LayoutTask.CUT


def test_a_mode_that_does_not_change_restarts_the_machine_once_and_then_says_so() -> None:
    world = World(a100s(1, mode=MigMode.DISABLED), mode_fails=True, with_reboot=True)
    world.wish("all-1g.5gb")
    states = []
    for _ in range(20):
        decision = world.round()
        states.append(world.labels[STATE_LABEL])
        if world.boots:
            break
        world.time_passes(decision.look_again or 0)
    assert states[-1] == "rebooting"
    world.settle()
    assert (shown(world), world.boots) == (("success", None), 1)


def test_a_restart_that_does_not_help_is_not_repeated() -> None:
    world = World(a100s(1, mode=MigMode.DISABLED), mode_fails=True, with_reboot=True)
    world.wish("all-1g.5gb")
    for _ in range(40):
        decision = world.round()
        if world.boots:  # the mode is lost in the restart
            gpus = tuple(
                replace(g, mode=MigMode.DISABLED, pending_mode=MigMode.DISABLED, instances=()) for g in world.view.node
            )
            world.view = replace(world.view, node=replace(world.view.node, gpus=gpus))
        world.time_passes(decision.look_again or 0)
    decision = until_it_waits(world)
    assert (world.boots, shown(world)[0]) == (1, "failed")
    assert decision.report is not None
    assert "did not take effect after rebooting" in decision.report.message


def test_a_restart_that_is_asked_for_is_not_made_when_it_is_no_longer_allowed() -> None:
    world = World(a100s(1, mode=MigMode.DISABLED), mode_fails=True, with_reboot=True)
    world.wish("all-1g.5gb")
    until_it_waits(world)
    assert shown(world)[0] == "pending"
    world.with_reboot = False
    for _ in range(20):
        world.time_passes(world.round().look_again or 0)
    until_it_waits(world)
    assert (world.boots, shown(world)) == (0, ("failed", "HardwareError"))


def test_a_restart_that_is_refused_is_failed_and_tried_again() -> None:
    world = World(a100s(1, mode=MigMode.DISABLED), mode_fails=True, reboot_fails=True, with_reboot=True)
    world.wish("all-1g.5gb")
    for _ in range(20):
        decision = world.round()
        world.time_passes(decision.look_again or 0)
    decision = until_it_waits(world)
    assert (world.boots, shown(world)) == (0, ("failed", "HardwareError"))
    assert decision.report is not None
    assert "cannot restart" in decision.report.message
    world.reboot_fails = False
    world.settle()
    assert (world.boots, shown(world)) == (1, ("success", None))


def test_a_machine_that_does_not_tell_its_starts_apart_is_not_restarted() -> None:
    world = World(a100s(1, mode=MigMode.DISABLED), mode_fails=True, with_reboot=True, boot_ids=False)
    world.wish("all-1g.5gb")
    for _ in range(20):
        world.time_passes(world.round().look_again or 0)
    until_it_waits(world)
    assert (world.boots, shown(world)) == (0, ("failed", "HardwareError"))


def test_gpus_that_cannot_be_read_are_a_failure_and_operands_run_meanwhile() -> None:
    world = World(a100s(1), labels=dict.fromkeys(OPERANDS, PAUSED))
    world.wish("all-1g.5gb")
    for error, state in [(HardwareError("NVML error 999"), "failed"), (KubeletUnavailable("silence"), "pending")]:
        unseen = replace(world.situation, unseen=error, view=view_of())
        decision = decide(unseen)
        assert decision.report is not None
        assert (decision.report.state, decision.report.reason) == (state, error.reason)
        assert str(error) in decision.report.message
        assert all(decision.labels[key] == "true" for key in OPERANDS)
        assert decision.look_again is not None
    assert decide(replace(unseen, node=replace(unseen.node, labels={}))).report is None


@pytest.mark.parametrize(("policy", "state"), [(InUsePolicy.WAIT, "pending"), (InUsePolicy.REFUSE, "failed")])
def test_a_restart_waits_for_pods(policy: InUsePolicy, state: str) -> None:
    view = view_of(gpu("A100-40GB", 0), gpu("A100-40GB", 1, mode=MigMode.DISABLED))
    world = World(
        view, config_map="version: v1\nmig-configs: {a: [{devices: [0], mig-enabled: true, mig-devices: {7g.40gb: 1}}]}"
    )
    cut(world, "a")
    pod = world.start_pod("a", 0, 0)
    assert pod is not None
    world.mode_fails = world.with_reboot = True
    world.policy = policy
    world.wish("all-7g.40gb")
    for _ in range(20):
        world.time_passes(world.round().look_again or 0)
    assert (world.boots, shown(world)) == (0, (state, "GpuBusy"))
    world.end_pod(pod)
    for _ in range(20):
        if world.boots == 0:
            world.time_passes(world.round().look_again or 0)
    assert world.boots == 1
    world.settle()
    assert shown(world) == ("success", None)


def test_two_managers_are_a_failure_in_which_nothing_is_cut() -> None:
    world = World(a100s(1), rivals=("NVIDIA's MIG manager, pod a/b",), labels=dict.fromkeys(OPERANDS, PAUSED))
    world.wish("all-1g.5gb")
    waits = until_it_waits(world).look_again
    assert waits is not None, "no news tells that the other manager is gone without a word"
    assert waits <= 10
    assert (shown(world), world.cuts) == (("failed", "ManagerConflict"), 0)
    assert [world.labels[key] for key in OPERANDS] == [PAUSED, PAUSED], "the other manager has paused them for its work"
    world.rivals = ()
    world.settle()
    assert shown(world) == ("success", None)


def test_another_change_of_layout_is_waited_for() -> None:
    world = World(a100s(1))
    world.view = replace(world.view, changing=frozenset({world.view.node.by_index(0).uuid}))
    world.wish("all-1g.5gb")
    world.settle()
    assert shown(world) == ("pending", "GpuBusy")
    world.view = replace(world.view, changing=frozenset())
    world.settle()
    assert shown(world) == ("success", None)


LAYOUTS = ["all-disabled", "all-enabled", "all-1g.5gb", "all-3g.20gb", "all-balanced", "halves", "nonsense"]


class Interference(RuleBasedStateMachine):
    """Wishes, pods, failures and kills in any order; whenever the causes go, the layout stands and nothing is left behind."""

    @initialize(
        policy=st.sampled_from(InUsePolicy),
        with_reboot=st.booleans(),
        mode=st.sampled_from([MigMode.ENABLED, MigMode.DISABLED]),
        operands=st.booleans(),
        board=st.sampled_from(["A100-40GB", "H100-80GB-SXM"]),
    )
    def begin(self, policy: InUsePolicy, with_reboot: bool, mode: MigMode, operands: bool, board: str) -> None:
        gpus = [gpu(board, index, mode=mode) for index in range(2)]
        self.world = World(view_of(*gpus), policy=policy, with_reboot=with_reboot)
        self.memory = {"A100-40GB": ("5gb", "20gb"), "H100-80GB-SXM": ("10gb", "40gb")}[board]
        if operands:
            self.world.labels.update(dict.fromkeys(OPERANDS, "true"))
            self.world.operand_pods = set(OPERANDS.values())
        self.pods = 0

    def _fitting(self, text: str) -> str:
        return text.replace("5gb", self.memory[0]).replace("20gb", self.memory[1])

    @rule(layout=st.sampled_from(LAYOUTS))
    def wish(self, layout: str) -> None:
        self.world.wish(self._fitting(layout))

    @rule()
    def wish_nothing(self) -> None:
        self.world.wish(None)

    @rule(text=st.sampled_from([None, TWO_HALVES, ONE_HALF, "version: v9", "- ["]))
    def edit(self, text: str | None) -> None:
        self.world.config_map = None if text is None else self._fitting(text)

    @rule(index=st.integers(0, 1), start=st.integers(0, 7), protected=st.booleans())
    def start_pod(self, index: int, start: int, protected: bool) -> None:
        self.pods += 1
        ref = self.world.start_pod(f"p{self.pods}", index, start)
        if ref is not None and protected:
            self.world.protected.add(ref)

    @rule(data=st.data())
    def end_pod(self, data: st.DataObject) -> None:
        if self.world.held:
            self.world.end_pod(data.draw(st.sampled_from(sorted(self.world.held))))

    @rule(data=st.data())
    def forget_pod(self, data: st.DataObject) -> None:
        """The API server tells of it no more, or not yet; the kubelet has its devices."""
        if self.world.pods:
            self.world.pods.pop(data.draw(st.sampled_from(sorted(self.world.pods))))

    @rule(app=st.sampled_from([*OPERANDS.values(), "web"]))
    def start_bystander(self, app: str) -> None:
        ref = PodRef("default", f"{app}-beside")
        self.world.pods[ref] = KubePod(ref, labels={"app": app})

    @rule(fails=st.booleans(), busy=st.booleans(), mode_fails=st.booleans(), stubborn=st.booleans())
    def hardware(self, fails: bool, busy: bool, mode_fails: bool, stubborn: bool) -> None:
        self.world.fails, self.world.busy = fails, busy
        self.world.mode_fails, self.world.stubborn_operands = mode_fails, stubborn

    @rule(rivals=st.sampled_from([(), ("another",)]))
    def rival(self, rivals: tuple[str, ...]) -> None:
        self.world.rivals = rivals

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.world.time_passes(seconds)

    @rule(kill_after=st.none() | st.integers(0, 5))
    def look(self, kill_after: int | None) -> None:
        held = dict(self.world.held)
        with suppress(Killed):
            self.world.round(kill_after=kill_after)
        for ref, grant in held.items():
            present = self.world.view.node.gpu(grant.gpu_uuid).instances
            assert any(i.placement == grant.placement for i in present), f"the slice of {ref} is gone"

    @rule()
    def causes_go(self) -> None:
        world = self.world
        world.fails = world.busy = world.mode_fails = world.stubborn_operands = False
        world.rivals, world.config_map = (), self._fitting(TWO_HALVES)
        world.protected.clear()
        for ref in list(world.held):
            world.end_pod(ref)
        if world.labels.get(LAYOUT_LABEL) == "nonsense":
            world.wish("all-disabled")
        world.settle()
        wanted = world.labels.get(LAYOUT_LABEL)
        assert shown(world) == (("success", None) if wanted else (None, None))
        assert not world.draining
        assert not world.unschedulable
        assert not world.annotations
        assert PAUSED not in world.labels.values()

    @invariant()
    def pods_that_do_not_matter_change_nothing(self) -> None:
        if hasattr(self, "world"):
            situation = self.world.situation
            mattering = pods_that_matter(situation.pods, situation.view.allocations, situation.trusted)
            assert decide(replace(situation, pods=mattering)) == decide(situation)

    @invariant()
    def what_is_shown_has_a_reason(self) -> None:
        if hasattr(self, "world"):
            state, reason = shown(self.world)
            assert (state in (None, "success")) == (reason is None)
            if state == "failed" and SINCE_ANNOTATION not in self.world.annotations and not self.world.rivals:
                assert PAUSED not in self.world.labels.values()


TestInterference = Interference.TestCase
TestInterference.settings = settings(max_examples=cases(60), stateful_step_count=40, deadline=None)


def test_a_pod_that_is_being_admitted_is_waited_for_and_named() -> None:
    world = World(a100s(1))
    cut(world, "all-1g.5gb")
    pod = world.start_pod("a", 0, 0)
    assert pod is not None
    world.held[PodRef("", "being admitted")] = world.held.pop(pod)
    world.wish("all-7g.40gb")
    decision = world.settle()
    assert shown(world) == ("pending", "GpuBusy")
    assert decision.report is not None
    assert "a pod that is being admitted" in decision.report.message
