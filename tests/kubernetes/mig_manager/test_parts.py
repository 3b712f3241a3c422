"""The parts of the MIG manager that are tables and texts: layouts' sources, remembered attempts, operands, partial plans."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grid_model import carry_out
from tests.kubernetes.mig_manager.mig_world import a100s, gpu
from tests.strategies import node_views, uncuttable_gpu, view_of
from tests.support.length import cases
from tranche.core.allocation import NodeView
from tranche.core.errors import GpuNotFound, LayoutInvalid, LayoutUnknown, TrancheError
from tranche.core.state import MigMode
from tranche.kubernetes.api.objects import KubeNode, KubePod, PodRef
from tranche.kubernetes.mig_manager.decision import draining_by
from tranche.kubernetes.mig_manager.layout_source import read_layouts
from tranche.kubernetes.mig_manager.operands import PAUSED, other_managers, pause, restore, still_running
from tranche.kubernetes.mig_manager.state import Moment, RetryState, attempt_text, parse_attempt, parse_moment
from tranche.planning.layouts.named_layouts import LayoutList, generate_layouts
from tranche.planning.layouts.reconfigure import plan_after_blockers, plan_beside_blockers, plan_layout
from tranche.planning.steps import CreateInstance, DestroyInstance

MOMENTS = st.builds(Moment, st.sampled_from(["", "boot-1", "boot-2"]), st.floats(0, 4e6))


def source(text: str) -> LayoutList:
    return read_layouts("ns/layouts", {"config.yaml": text})


def test_the_config_map_wins_over_a_generated_name() -> None:
    text = "version: v1\nmig-configs: {all-1g.5gb: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 3}}]}"
    node = a100s().node
    assert source(text).select("all-1g.5gb", node).specs[0].slices[0][1] == 3
    assert LayoutList().select("all-1g.5gb", node).specs[0].slices[0][1] == 7
    assert source(text).select("all-balanced", node).specs


@pytest.mark.parametrize(
    ("made", "error", "says"),
    [
        (read_layouts("ns/l", {"other": ""}), LayoutInvalid, "has no key 'config.yaml'"),
        ("a: [b", LayoutInvalid, "ConfigMap ns/layouts, config.yaml"),
        ("version: v2", LayoutInvalid, "unknown version: v2"),
        ("version: v1\nmig-configs: !!int x", LayoutInvalid, "config.yaml is neither YAML nor JSON"),
        ("version: v1\nmig-configs: " + "[" * 2000, LayoutInvalid, "config.yaml is neither YAML nor JSON"),
        ('{"version": ' + "[" * 200_000, LayoutInvalid, "config.yaml is neither YAML nor JSON"),
        (LayoutList("ns/l"), LayoutUnknown, "selected mig-config not present: x"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(made: LayoutList | str, error: type[TrancheError], says: str) -> None:
    layouts = source(made) if isinstance(made, str) else made
    with pytest.raises(error, match=says):
        layouts.select("x", a100s().node)


def test_a_layout_with_the_name_of_a_date_is_a_layout() -> None:
    made = source("version: v1\nmig-configs: {2026-13-45: [{devices: all, mig-enabled: false}]}")
    assert made.select("2026-13-45", a100s().node).name == "2026-13-45"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(LayoutUnknown) as caught:
        LayoutList("ns/l").select("x", a100s().node)
    assert "ConfigMap ns/l does not exist" in caught.value.hint
    assert "all-balanced" in caught.value.hint


def test_one_config_map_serves_several_kinds_of_nodes() -> None:
    text = """
version: v1
mig-configs:
  ours:
    - {device-filter: "0x20B010DE", devices: [0, 1], mig-enabled: true, mig-devices: {1g.5gb: 7}}
    - {device-filter: "0x233010DE", devices: [0, 1, 2, 3], mig-enabled: true, mig-devices: {1g.10gb: 7}}
"""
    assert source(text).select("ours", a100s(2).node).name == "ours"
    with pytest.raises(GpuNotFound, match="names GPU 1, but this machine has only 1 GPU"):
        source(text).select("ours", a100s(1).node)
    with pytest.raises(GpuNotFound, match="matches no GPU on this machine"):
        source(text).select("ours", view_of(gpu("A30-24GB")).node)
    with pytest.raises(GpuNotFound, match="matches no GPU on this machine"):
        source(text).select("ours", view_of(uncuttable_gpu()).node)


@given(
    st.builds(RetryState, st.text(), st.integers(1, 10_000), MOMENTS, st.text(), st.text(), st.sampled_from(["", "b"]))
)
def test_an_attempt_is_read_as_it_was_written(attempt: RetryState) -> None:
    assert parse_attempt(attempt_text(attempt)) == attempt


@given(st.integers(1, 10_000), MOMENTS, MOMENTS)
def test_no_clock_keeps_a_failed_attempt_waiting_longer_than_five_minutes(
    failures: int, at: Moment, now: Moment
) -> None:
    attempt = RetryState("d", failures, at, "HardwareError", "no")
    assert 0 <= attempt.wait(now) <= 300
    assert 5 <= attempt.wait(at) <= 300
    if at.boot != now.boot or now.seconds < at.seconds:
        assert attempt.wait(now) == 0, "what began before a restart of the machine is over"


@given(MOMENTS)
def test_a_moment_is_read_as_it_was_written(moment: Moment) -> None:
    passed = parse_moment(str(moment)).until(Moment(moment.boot, moment.seconds + 1))
    assert passed == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("text", ["", "@", "x@b", "nan@b", "inf@b", "1900000000.0", "9@c"])
def test_of_a_moment_that_cannot_be_read_nothing_is_told(text: str) -> None:
    assert parse_moment(text).until(Moment("b", 5e9)) is None


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[1]", "null", '{"digest": 1}', "x" * 100, pytest.param("[" * 100_000, id="deep")]
)
def test_an_attempt_that_cannot_be_read_is_none(text: str | None) -> None:
    assert parse_attempt(text) is None


@given(
    st.dictionaries(
        st.sampled_from(["device-plugin", "dcgm", "nvsm", "client"]), st.sampled_from(["true", "false", PAUSED])
    )
)
def test_operands_that_are_paused_and_restored_are_as_they_were_or_run(labels: dict[str, str]) -> None:
    before = {f"nvidia.com/gpu.deploy.{key}": value for key, value in labels.items()}
    paused = {**before, **pause(KubeNode("n", labels=before))}
    assert "true" not in paused.values()
    after = {**paused, **restore(KubeNode("n", labels={key: value for key, value in paused.items() if value}))}
    assert after == {key: "true" if value == PAUSED else value for key, value in before.items()}


def test_only_pods_of_paused_operands_are_waited_for() -> None:
    pods = [
        KubePod(PodRef("g", "plugin"), labels={"app": "nvidia-device-plugin-daemonset"}),
        KubePod(PodRef("g", "dcgm"), labels={"app": "nvidia-dcgm"}),
        KubePod(PodRef("g", "old"), labels={"app": "nvidia-device-plugin-daemonset"}, phase="Succeeded"),
        KubePod(PodRef("g", "manager"), labels={"app": "nvidia-mig-manager"}),
        KubePod(PodRef("d", "job"), labels={}),
    ]
    labels = {"nvidia.com/gpu.deploy.device-plugin": PAUSED, "nvidia.com/gpu.deploy.dcgm": "false"}
    assert [pod.ref.name for pod in still_running(labels, pods, {"g"})] == ["plugin"]
    assert [pod.ref.name for pod in other_managers(pods, {"g"})] == ["manager"]
    assert other_managers(pods, {"d"}) == still_running(labels, pods, {"d"}) == ()


@given(node_views(max_gpus=3), st.data())
@settings(max_examples=cases(150), deadline=None)
def test_what_is_done_beside_users_touches_none_of_them_and_need_not_be_done_again(
    view: NodeView, data: st.DataObject
) -> None:
    try:
        layouts = generate_layouts(view.node).layouts
        layout = data.draw(st.sampled_from(layouts))
        decision = plan_layout(view, layout)
    except TrancheError:
        return
    later = plan_after_blockers(view, layout, decision)
    now = plan_beside_blockers(view, decision, later)
    assert set(now.steps) <= set(later.steps)
    after = carry_out(view, now)  # fails when a step touches what is used or promised
    again = plan_layout(after, layout)
    rest = plan_after_blockers(after, layout, again)
    assert plan_beside_blockers(after, again, rest).empty
    made = {DestroyInstance(s.gpu_uuid, s.profile, s.placement) for s in now.steps if isinstance(s, CreateInstance)}
    assert not made & set(rest.steps), "what was just made is destroyed again"


def test_pods_of_a_daemon_set_that_selects_a_paused_label_are_waited_for() -> None:
    client, plugin = "nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.device-plugin"
    pods = [
        KubePod(PodRef("a", "monitor"), owner_kind="DaemonSet", node_selector={client: "true"}),
        KubePod(PodRef("b", "charted-plugin"), owner_kind="DaemonSet", node_selector={plugin: "true"}),
        KubePod(PodRef("c", "job"), owner_kind="Job", node_selector={client: "true"}),
        KubePod(PodRef("d", "elsewhere"), owner_kind="DaemonSet", node_selector={"disk": "ssd"}),
    ]
    trusted = {"a", "b", "c", "d"}
    assert [pod.ref.name for pod in still_running({client: PAUSED, plugin: "true"}, pods, trusted)] == ["monitor"]
    assert [pod.ref.name for pod in still_running({client: "true", plugin: PAUSED}, pods, trusted)] == [
        "charted-plugin"
    ]
    assert still_running({client: PAUSED, plugin: PAUSED}, pods, {"gpu-operator"}) == ()


def test_a_change_of_mode_drains_the_gpu_and_all_on_it_and_a_cut_only_what_goes() -> None:
    off = view_of(gpu("A100-40GB", 0, mode=MigMode.DISABLED))
    layout = LayoutList().select("all-1g.5gb", off.node)
    assert draining_by(plan_layout(off, layout).plan, off) == {off.node.by_index(0).uuid}
    on = carry_out(off, plan_layout(off, layout).plan)
    slices = {device.uuid for i in on.node.by_index(0).instances for device in i.compute_instances}
    disabled = plan_layout(on, LayoutList().select("all-disabled", on.node)).plan
    assert draining_by(disabled, on) == {on.node.by_index(0).uuid, *slices}
    recut = plan_layout(on, LayoutList().select("all-2g.10gb", on.node)).plan
    assert draining_by(recut, on) == slices
    assert draining_by(plan_layout(on, layout).plan, on) == frozenset()
