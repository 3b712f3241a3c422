"""No word of a namespace that a viewer does not see is in anything that he is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from tests.dashboard.cluster.teams import OUR_SIGHT, OURS, THEIRS, shared_machines
from tests.kubernetes.dra.test_order import a100s, claimed
from tests.strategies import requests
from tranche.core.allocation import NodeView, Slice
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.request import Request
from tranche.dashboard.cluster.sight import HIDDEN, ViewerSight
from tranche.dashboard.cluster.veil import veiled_overview, veiled_text, veiled_view
from tranche.dashboard.fleet_page import fleet_page
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.gpu_page import gpu_page
from tranche.documents.explanation import explanation_document
from tranche.documents.overview import overview_data
from tranche.planning.explain import explain

GPU_FIELDS = {
    *(
        "index",
        "uuid",
        "name",
        "architecture",
        "pciBusId",
        "pciDeviceId",
        "pciSubsystemId",
        "minor",
        "numaNode",
        "lost",
    ),
    *("memoryBytes", "memoryFreeBytes", "mig", "memorySlices", "profilesSource", "changing", "withheld"),
    *("allocationId", "allocationIds", "sharing", "slices", "room", "processes"),
}
SLICE_FIELDS = {
    *("profile", "placement", "state", "owned", "allocationId", "allocationIds", "sharing", "gpuInstanceId"),
    *("profileId", "memoryBytes", "devices", "processes"),
}
ALLOCATION_FIELDS = {
    *("id", "request", "grants", "phase", "created", "keeper", "pid", "command", "fenced", "missingInstances"),
}


@given(shared_machines())
def test_nothing_of_a_hidden_team_is_in_the_document_or_on_a_page(view: NodeView) -> None:
    overview = overview_data(view, (), ())
    shown = veiled_overview(overview, OUR_SIGHT)
    pages: list[DashboardPage | None] = [fleet_page(shown, ()), fleet_page(shown, (), THEIRS)]
    pages += [gpu_page(gpu["uuid"], shown, (), (), (), 2e9, 1) for gpu in shown["gpus"]]
    written = [str(each.live) for each in pages if each is not None]
    assert THEIRS not in json.dumps(shown)
    # What somebody looks for stands in the page, as he typed it himself.
    assert THEIRS not in "".join(written).replace(f"have “{THEIRS}”", "")
    # And nothing else is missing: the same GPUs, slices, shares and amounts.
    for before, after in zip(overview["gpus"], shown["gpus"], strict=True):
        hidden: dict[str, Any] = {"slices": [], "processes": [], "withheld": None}
        assert {**before, **hidden} == {**after, **hidden}
        states = [(each["state"], each["allocationIds"], len(each["processes"])) for each in before["slices"]]
        assert states == [(each["state"], each["allocationIds"], len(each["processes"])) for each in after["slices"]]
    for before, after in zip(overview["allocations"], shown["allocations"], strict=True):
        assert (before["id"], before["grants"], before["phase"]) == (after["id"], after["grants"], after["phase"])
        keeper = before["keeper"]
        ours = keeper["kind"] != "process" and keeper["namespace"] == OURS
        assert (after == before) is ours
        assert (after["command"] == HIDDEN) is not ours


@given(shared_machines())
def test_the_view_is_veiled_as_the_document_is(view: NodeView) -> None:
    shown = overview_data(veiled_view(view, OUR_SIGHT), (), ())
    wanted = veiled_overview(overview_data(view, (), ()), OUR_SIGHT)
    assert shown["gpus"] == wanted["gpus"]
    assert THEIRS not in json.dumps(shown)


@given(shared_machines(), requests())
def test_no_answer_to_a_question_names_them(view: NodeView, request: Request) -> None:
    found = explain(veiled_view(view, OUR_SIGHT), request, ())
    said = json.dumps(explanation_document(found, 0))
    assert THEIRS not in said.replace(json.dumps(request.gpu_model), "")


@given(shared_machines())
def test_who_sees_every_namespace_sees_all_and_who_sees_none_no_name(view: NodeView) -> None:
    overview = overview_data(view, (), ())
    assert veiled_overview(overview, ViewerSight(everywhere=True)) is overview
    assert veiled_view(view, ViewerSight(everywhere=True)) is view
    nobodys = json.dumps(veiled_overview(overview, ViewerSight()))
    assert THEIRS not in nobodys
    assert f"{OURS}-" not in nobodys


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("waits for pod zebra/zebra-job-0, which holds it", f"waits for pod {HIDDEN}, which holds it"),
        ("held by blue/train-0 and zebra/x.y-z.", f"held by blue/train-0 and {HIDDEN}."),
        ("(claim zebra/c)", f"(claim {HIDDEN})"),
        ("nvidia.com/gpu: 3 of GPU 0", "nvidia.com/gpu: 3 of GPU 0"),
        ("/var/lib/tranche is full", "/var/lib/tranche is full"),
        ("nothing to see", "nothing to see"),
        ("done by system:serviceaccount:zebra:bot from", f"done by {HIDDEN} from"),
        ("done by system:serviceaccount:blue:bot.", "done by system:serviceaccount:blue:bot."),
    ],
)
def test_a_message_names_only_what_may_be_seen(text: str, shown: str) -> None:
    assert veiled_text(text, OUR_SIGHT) == shown
    assert veiled_text(text, ViewerSight(everywhere=True)) == text


def test_whoever_tells_more_in_a_document_says_whom_it_names() -> None:
    """Each field was looked at: none but these names anybody, in the words of a person or of a program."""
    view = claimed(a100s(1), Slice(a100s(1).node.gpus[0].uuid, parse_profile("1g.5gb"), Placement(0, 1)))
    overview = overview_data(view, (), ())
    (gpu,), (allocation,) = overview["gpus"], overview["allocations"]
    assert set(overview) == {"gpus", "allocations", "waiters"}
    assert set(gpu) == GPU_FIELDS
    assert set(gpu["slices"][0]) == SLICE_FIELDS
    assert set(allocation) == ALLOCATION_FIELDS
