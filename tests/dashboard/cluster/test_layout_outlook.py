"""What a layout would do on a node is what its agent would decide of the same view, and hidden names are not in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.cluster.teams import OUR_SIGHT, THEIRS, shared_machines
from tests.dashboard.cluster.test_cluster_server import held_by
from tests.dashboard.reading import parsed, tables, text_of
from tests.kubernetes.devices.test_order import a100s
from tranche.core.allocation import NodeView
from tranche.core.errors import GpuBusy, TrancheError, UsageError
from tranche.core.layout import Layout, LayoutFile, LayoutSpec
from tranche.core.profile import parse_profile
from tranche.dashboard.cluster.cluster_action import layout_act
from tranche.dashboard.cluster.node_layouts import LayoutPreview, NodeLayoutView, node_layouts_page
from tranche.dashboard.cluster.redaction import redacted_overview
from tranche.dashboard.cluster.snapshot import (
    HIDDEN,
    ClusterSnapshot,
    HeardNode,
    KubeNodeState,
    NameVisibility,
    SeenNode,
)
from tranche.dashboard.cluster.source import ClusterObservation
from tranche.dashboard.cluster.user_view import UserView, ViewerPermission
from tranche.documents.markup import element
from tranche.documents.overview import overview_data
from tranche.kubernetes.mig_manager.decision import work_plan
from tranche.kubernetes.mig_manager.drain import InUsePolicy
from tranche.kubernetes.telling.told_view import NOT_MANAGED, LayoutReport, ViewReport
from tranche.planning.layouts.named_layouts import LayoutList

ALL = NameVisibility(everywhere=True)
WAIT = LayoutReport(True, "wait", offer=LayoutList())


def layouts_of(
    view: NodeView,
    told: LayoutReport | None = WAIT,
    sight: NameVisibility = ALL,
    standing: KubeNodeState | None = None,
    **known: frozenset[str] | bool,
) -> NodeLayoutView:
    node = SeenNode("n1", standing or KubeNodeState(), redacted_overview(overview_data(view, (), ()), sight), 1.0)
    return NodeLayoutView(node, ViewReport("n1", view, layouts=told, **known), sight)  # type: ignore[arg-type]


def page_of(layouts: NodeLayoutView, chosen: str) -> str:
    try:
        outlook, trouble = layouts.outlook(chosen), ""
    except UsageError as error:
        outlook, trouble = None, error.message
    page = node_layouts_page(layouts, chosen, outlook, trouble, layout_act)
    return str(element("main", page.above, page.live))


@given(shared_machines(), st.sampled_from(InUsePolicy), st.data())
def test_it_is_what_the_agent_decides_by_the_same_view(
    view: NodeView, policy: InUsePolicy, data: st.DataObject
) -> None:
    layouts = layouts_of(view, replace(WAIT, in_use=policy))
    chosen = data.draw(st.sampled_from(layouts.names))
    try:
        outlook = layouts.outlook(chosen)
    except UsageError:
        return
    layout = LayoutList().select(chosen, view.node)
    try:
        steps = work_plan(view, layout, policy).steps
    except GpuBusy:
        steps = ()
    assert [step for gpu in outlook.gpus for step in gpu.now] == list(steps)
    # What is done at once takes nothing from whoever stands in the way, and is a part of the whole.
    assert all(set(gpu.now) <= set(gpu.later) or not gpu.later for gpu in outlook.gpus if not outlook.changing)
    if not outlook.blockers:
        assert [step for gpu in outlook.gpus for step in gpu.later] == list(steps)


@given(shared_machines(), st.data())
def test_whoever_sees_one_team_sees_the_same_plan_without_the_names_of_others(
    view: NodeView, data: st.DataObject
) -> None:
    every, ours = layouts_of(view), layouts_of(view, sight=OUR_SIGHT)
    assert every.names == ours.names
    chosen = data.draw(st.sampled_from([*every.names, "no-such-layout"]))
    assert THEIRS not in page_of(ours, chosen)
    try:
        whole = every.outlook(chosen)
    except TrancheError:
        return
    redacted = ours.outlook(chosen)
    assert [(each.now, each.later, len(each.blockers)) for each in whole.gpus] == [
        (each.now, each.later, len(each.blockers)) for each in redacted.gpus
    ]
    assert THEIRS not in " ".join(redacted.said)


def test_it_says_what_it_keeps_and_what_it_takes_from_whom() -> None:
    view = held_by(a100s(1), ("blue", 0), ("zebra", 1))
    ours = layouts_of(view, sight=NameVisibility(frozenset({"blue"}))).outlook("all-7g.40gb")
    assert ours.said[0] == "These must end first. The agent waits, and assigns their devices to no one else:"
    assert len(ours.blockers) == 2
    (blue,) = (each for each in ours.said if "blue/blue-train-0" in each)
    assert "1g.5gb at 0:1 of GPU 0" in blue
    assert HIDDEN in " ".join(ours.said)
    assert "zebra" not in " ".join(ours.said)
    (gpu,) = ours.after
    assert [each["profile"] for each in gpu["slices"]] == ["7g.40gb"]


def test_slices_that_fit_stay_and_are_named() -> None:
    view = held_by(a100s(1), ("blue", 0))
    layouts = layouts_of(view)
    outlook = layouts.outlook("all-1g.5gb")
    assert outlook.said[-1] == "Kept, with the same UUIDs: 1 slice."
    shown = tables(parsed(page_of(layouts, "all-1g.5gb")))["What is kept"]
    assert [row[:2] for row in shown] == [["GPU 0", "1g.5gb at 0:1"]]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("wait", "The agent waits"),
        ("refuse", "refuses the layout while these are in use, and changes nothing"),
        ("drain", "cordons the node, evicts pods"),
    ],
)
def test_what_becomes_of_users_is_the_policy_of_the_agent(policy: str, says: str) -> None:
    view = held_by(a100s(2), ("blue", 0))
    outlook = layouts_of(view, LayoutReport(True, policy, offer=LayoutList())).outlook("all-7g.40gb")
    assert says in " ".join(outlook.said)
    at_once = [each for each in outlook.said if each.startswith("Immediately on GPU 1")]
    assert bool(at_once) is (policy != "refuse")


def test_the_config_maps_layouts_are_there_and_come_first() -> None:
    thirds = Layout("all-1g.5gb", (LayoutSpec(True, ((parse_profile("1g.5gb"), 3),)),))
    others = Layout("elsewhere", (LayoutSpec(True, ((parse_profile("1g.5gb"), 1),), devices=(9,)),))
    offer = LayoutList("tranche/layouts", LayoutFile((thirds, others)))
    layouts = layouts_of(a100s(1), LayoutReport(True, "wait", offer=offer))
    assert "all-balanced" in layouts.names
    assert "elsewhere" not in layouts.names
    (gpu,) = layouts.outlook("all-1g.5gb").after
    assert len(gpu["slices"]) == 3


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (None, "The effect of a layout is unknown"),
        (LayoutReport(True, "a word of tomorrow", offer=LayoutList()), "an unknown format"),
        (NOT_MANAGED, "it runs without the MIG manager"),
        (LayoutReport(True, "wait", offer=None), "more layouts than fit in its report"),
        (
            LayoutReport(True, "wait", offer=LayoutList("zebra/l", None, "ConfigMap zebra/l has no key")),
            "cannot be read",
        ),
    ],
)
def test_what_is_not_told_is_said_and_nothing_is_made_up(told: LayoutReport | None, says: str) -> None:
    layouts = layouts_of(a100s(1), told, OUR_SIGHT)
    assert says in layouts.unknown
    assert layouts.names == ()
    with pytest.raises(UsageError):
        layouts.outlook("all-balanced")
    shown = page_of(layouts, "all-balanced")
    assert says in text_of(parsed(shown))
    assert "zebra" not in shown
    assert "<svg" not in shown


def test_of_a_node_that_was_never_heard_nothing_is_foreseen() -> None:
    layouts = NodeLayoutView(SeenNode("n1", trouble="its agent has told nothing"), None, ALL)
    assert "Its GPUs are unknown" in text_of(parsed(page_of(layouts, "all-balanced")))


@pytest.mark.parametrize(
    ("told", "standing", "short", "says"),
    [
        (replace(WAIT, heeds_mode=True), KubeNodeState(mode="dynamic"), False, "Its mode is dynamic"),
        (replace(WAIT, heeds_mode=True), KubeNodeState(), False, "Its mode is unknown"),
        (replace(WAIT, turns=True), KubeNodeState(), False, "take turns"),
        (
            WAIT,
            KubeNodeState(labels={"tranche.dev/mig.config.reason": "ManagerConflict"}),
            False,
            "Another MIG manager",
        ),
        (WAIT, KubeNodeState(), True, "names only one process"),
        (WAIT, KubeNodeState(), False, "decides again"),
    ],
)
def test_what_else_decides_is_said(told: LayoutReport, standing: KubeNodeState, short: bool, says: str) -> None:
    layouts = layouts_of(a100s(1), told, standing=standing, short=short)
    assert says in " ".join(layouts.notes)
    plain = layouts_of(a100s(1), replace(WAIT, heeds_mode=True), standing=KubeNodeState(mode="static"))
    assert len(plain.notes) == 1


def test_a_layout_that_waits_makes_room_for_another_and_a_change_at_work_does_not() -> None:
    view = held_by(a100s(1), ("blue", 0))
    (gpu,) = view.node.gpus
    told = replace(view, changing=frozenset({gpu.uuid}))
    waits = layouts_of(told, marked=frozenset({gpu.uuid})).outlook("all-1g.5gb")
    assert not waits.changing
    works = layouts_of(told).outlook("all-1g.5gb")
    assert works.changing
    assert works.after == ()
    assert "so the remaining steps are unknown" in " ".join(works.said)


def test_a_layout_that_is_there_already_does_nothing() -> None:
    outlook = layouts_of(a100s(1)).outlook("all-enabled")
    assert outlook.nothing_to_do
    assert outlook.said == ("Its GPUs already have the layout all-enabled.",)


def test_what_was_found_stands_until_the_agent_tells_something_new() -> None:
    view = a100s(1)
    seen = SeenNode("n1", KubeNodeState(), overview_data(view, (), ()), 1.0)
    user_view = UserView(ViewerPermission(ALL, all_nodes=True))
    snapshot = ClusterSnapshot().after([seen], 1.0)

    def asked(told: ViewReport) -> LayoutPreview:
        user_view.take(ClusterObservation(snapshot, {"n1": told}))
        layouts = user_view.layouts("n1")
        assert layouts is not None
        return user_view.outlook(layouts, "all-1g.5gb")

    first = ViewReport("n1", view, layouts=WAIT)
    assert asked(first) is asked(first)
    later = ViewReport("n1", held_by(view, ("blue", 0)), layouts=WAIT)
    assert asked(later).said != asked(first).said
    assert user_view.layouts("n2") is None
    assert HeardNode("n1", "", 0.0).told is None
