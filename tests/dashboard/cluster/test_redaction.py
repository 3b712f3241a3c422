"""No word of a namespace that a viewer does not see is in anything that he is shown."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.cluster.teams import OUR_SIGHT, OURS, THEIRS, shared_machines
from tests.kubernetes.devices.test_order import a100s, claimed
from tests.strategies import requests
from tranche.core.allocation import NodeView, Slice
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.request import Request
from tranche.dashboard.cluster.redaction import redacted_overview, redacted_text, redacted_view
from tranche.dashboard.cluster.snapshot import HIDDEN, NameVisibility
from tranche.dashboard.fleet_page import fleet_page
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.gpu_page import gpu_page
from tranche.dashboard.parts import TableOrder
from tranche.documents.explanation import explanation_document
from tranche.documents.overview import overview_data
from tranche.planning.explain.explanation import explain

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
        "reserved",
    ),
    *("memoryBytes", "memoryFreeBytes", "mig", "memorySlices", "profilesSource", "changing", "withheld"),
    *("allocationId", "allocationIds", "sharing", "slices", "vacant", "room", "processes"),
}
SLICE_FIELDS = {
    *("profile", "placement", "state", "owned", "allocationId", "allocationIds", "sharing", "gpuInstanceId"),
    *("profileId", "memoryBytes", "devices", "processes"),
}
ALLOCATION_FIELDS = {
    *("id", "request", "grants", "phase", "created", "keeper", "pid", "owner", "command", "unavailable"),
    *("missingInstances", "idleSeconds"),
}


@given(shared_machines())
def test_nothing_of_a_hidden_team_is_in_the_document_or_on_a_page(view: NodeView) -> None:
    overview = overview_data(view, (), ())
    shown = redacted_overview(overview, OUR_SIGHT)
    pages: list[DashboardPage | None] = [
        fleet_page(shown, (), 2e9, TableOrder("/", {"q": each})) for each in ("", THEIRS)
    ]
    pages += [gpu_page(gpu["uuid"], shown, (), (), (), 2e9, 1) for gpu in shown["gpus"]]
    written = [str(each.live) for each in pages if each is not None]
    assert THEIRS not in json.dumps(shown)
    # What somebody looks for stands in the page, as he typed it himself.
    assert THEIRS not in "".join(written).replace(f"match “{THEIRS}”", "")
    # And nothing else is missing: the same GPUs, slices, shares and amounts.
    for before, after in zip(overview["gpus"], shown["gpus"], strict=True):
        hidden: dict[str, Any] = {"slices": [], "processes": [], "withheld": None, "vacant": []}
        assert {**before, **hidden} == {**after, **hidden}
        vacant = [(each["placement"], each["state"], bool(each["why"])) for each in before["vacant"]]
        assert vacant == [(each["placement"], each["state"], bool(each["why"])) for each in after["vacant"]]
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
    shown = overview_data(redacted_view(view, OUR_SIGHT), (), ())
    wanted = redacted_overview(overview_data(view, (), ()), OUR_SIGHT)
    assert shown["gpus"] == wanted["gpus"]
    assert THEIRS not in json.dumps(shown)


@given(shared_machines(), requests())
def test_no_answer_to_a_question_names_them(view: NodeView, request: Request) -> None:
    found = explain(redacted_view(view, OUR_SIGHT), request, ())
    said = json.dumps(explanation_document(found, 0))
    assert THEIRS not in said.replace(json.dumps(request.gpu_model), "")


@given(shared_machines())
def test_who_sees_every_namespace_sees_all_and_who_sees_none_no_name(view: NodeView) -> None:
    overview = overview_data(view, (), ())
    assert redacted_overview(overview, NameVisibility(everywhere=True)) is overview
    assert redacted_view(view, NameVisibility(everywhere=True)) is view
    nobodys = json.dumps(redacted_overview(overview, NameVisibility()))
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
        ("(group system:serviceaccounts:zebra)", f"(group {HIDDEN})"),
        ("container zebra/job-0/main has it", f"container {HIDDEN} has it"),
        ("pods/zebra/job-0 and zebra//job-0: both", f"{HIDDEN} and {HIDDEN}: both"),
        ("GET /api/v1/namespaces/zebra/pods", f"GET {HIDDEN}"),
        ("namespaces/zebra, for short ns/zebra", f"{HIDDEN}, for short {HIDDEN}"),
        ("pods/blue/train-0 and blue/train-0/main: ours", "pods/blue/train-0 and blue/train-0/main: ours"),
        ("1/2 of GPU 0, 14/56 slices", "1/2 of GPU 0, 14/56 slices"),
        ("tranche explain pod/NAME; see /queue.", "tranche explain pod/NAME; see /queue."),
        ("2026-11-22T10:00:00Z at 6:1, 1g.5gb", "2026-11-22T10:00:00Z at 6:1, 1g.5gb"),
    ],
)
@pytest.mark.parametrize("named", [(), (THEIRS, OURS)])
def test_a_message_names_only_what_may_be_seen(text: str, shown: str, named: tuple[str, ...]) -> None:
    """Whether it is known that there is such a namespace or not."""
    assert redacted_text(text, OUR_SIGHT, named) == shown
    assert redacted_text(text, NameVisibility(everywhere=True), named) == text


names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True).filter(
    lambda each: each not in ("another", "namespace")
)
around = st.sampled_from(["", "(", "'", '"', "=", "[", "see: ", "for ", "pod ", ",", "\u201c", "\n", "\u200b"])
after = st.sampled_from(["", ")", "'", '"', "]", ".", ":", ", which", "'s", " has it", "\n", "!", ";"])
written = st.sampled_from(
    [
        *("{}", "{}/x", "{}/x/main", "pods/{}/x", "{}//x", "x/{}", "/{}/x", "x.{}.svc", "{}:x", "a@{}", "x_{}"),
        *("namespaces/{}/pods", "system:serviceaccount:{}:bot", "https://x.{}.svc.cluster.local:80/a", "-{}-", "{}."),
    ]
)


@given(st.lists(st.tuples(around, written, names, after), max_size=5), st.sets(names, max_size=3))
def test_no_name_of_a_known_namespace_that_is_hidden_is_left(
    pieces: list[tuple[str, str, str, str]], seen: set[str]
) -> None:
    text = " ".join(before + form.format(name) + behind for before, form, name, behind in pieces)
    named = {name for _, _, name, _ in pieces}
    shown = redacted_text(text, NameVisibility(frozenset(seen)), named)
    for name in named - seen:
        # An object of a namespace that is seen may be called as another namespace is.
        left = re.sub(
            r"(?<![\w./:@-])([-a-z0-9]+)/[-.a-z0-9]+(?![\w/:@])", lambda it: it[1] if it[1] in seen else it[0], shown
        )
        words = re.split(r"[^-a-z0-9]+", left.replace(HIDDEN, "").replace("\u200b", " "))
        assert name not in {each.strip("-") for each in words} - set(COMMON), (text, shown)


COMMON = {
    *(
        "",
        "x",
        "a",
        "main",
        "pods",
        "svc",
        "namespaces",
        "system",
        "serviceaccount",
        "bot",
        "https",
        "cluster",
        "local",
    ),
    *("80", "see", "for", "pod", "which", "s", "has", "it"),
}


@given(st.text(st.sampled_from("ab01 .,:;()'\"-GPU_é%"), max_size=40), st.sets(names, max_size=2))
def test_a_text_without_an_object_and_without_such_a_name_stays_as_it_is(text: str, seen: set[str]) -> None:
    assert redacted_text(text, NameVisibility(frozenset(seen)), seen | {"zebra"}) == text


@given(st.integers(0, 200), st.integers(1, 200), around, after)
def test_a_fraction_is_no_object(some: int, all_: int, before: str, behind: str) -> None:
    text = f"{before}{some}/{all_}{behind} of its slices"
    assert redacted_text(text, OUR_SIGHT, {"zebra", "blue"}) == text


@given(names, names, around, after)
def test_what_is_of_a_seen_namespace_keeps_its_name(space: str, name: str, before: str, behind: str) -> None:
    text = f"{before}{space}/{name}{behind}"
    assert redacted_text(text, NameVisibility(frozenset({space})), {name, space, "zebra"}) == text


def test_whoever_tells_more_in_a_document_says_whom_it_names() -> None:
    """Each field was looked at: none but these names anybody, in the words of a person or of a program."""
    view = claimed(a100s(1), Slice(a100s(1).node.gpus[0].uuid, parse_profile("1g.5gb"), Placement(0, 1)))
    overview = overview_data(view, (), ())
    (gpu,), (allocation,) = overview["gpus"], overview["allocations"]
    assert set(overview) == {"gpus", "allocations", "waiters"}
    assert set(gpu) == GPU_FIELDS
    assert set(gpu["slices"][0]) == SLICE_FIELDS
    assert set(allocation) == ALLOCATION_FIELDS
