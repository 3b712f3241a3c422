"""What is withheld is given to nobody whom it is withheld from, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.strategies import FAMILY_BOARDS, gpu_on, node_views, requests_for, view_of
from tranche.core.allocation import FractionalShare, Grant, NodeView, Slice, WholeGpu, WithheldDevice, overlap
from tranche.core.errors import TrancheError
from tranche.core.grid import PlacedInstance, placements
from tranche.core.profile import size_rank
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.planning.decide.allocate import Granted, Waiting, decide
from tranche.planning.decide.obstacle import Reason
from tranche.planning.decide.recording import view_from_dict, view_to_dict
from tranche.planning.explain.explanation import explain
from tranche.planning.explain.remedies import RemedyKind


@st.composite
def places(draw: st.DrawFn, view: NodeView) -> Slice | WholeGpu:
    """A GPU of the view, or a place on it, whoever has something of it."""
    gpu = draw(st.sampled_from(view.node.gpus))
    profiles = [profile for profile in gpu.profiles if profile.starts]
    if not profiles or draw(st.booleans()):
        return WholeGpu(gpu.uuid)
    profile = draw(st.sampled_from(profiles))
    return Slice(gpu.uuid, profile.name, draw(st.sampled_from(placements(profile))))


@st.composite
def withholding(draw: st.DrawFn, *, for_large: bool) -> tuple[NodeView, NodeView, Request]:
    """A machine, the same that withholds places, and a request."""
    view = draw(node_views(max_gpus=2))
    assume(view.node.gpus)
    found = draw(st.lists(places(view), min_size=1, max_size=3))
    return (
        view,
        replace(view, withheld=tuple(WithheldDevice(each, "is kept", for_large) for each in found)),
        draw(requests_for(view)),
    )


def across(grant: Grant, place: Grant) -> bool:
    """Whether one cannot be had beside the other; slices with media engines exclude each other wherever they lie."""
    here, there = grant.slot, place.slot
    if grant.gpu_uuid != place.gpu_uuid or here is None or there is None:
        return overlap(grant, place)
    return PlacedInstance(here.profile, here.placement).conflicts(PlacedInstance(there.profile, there.placement))


def decided(view: NodeView, request: Request) -> Granted | Waiting | str:
    try:
        return decide(view, request)
    except TrancheError as error:
        return error.reason


@given(withholding(for_large=False))
def test_nobody_is_given_what_is_withheld_from_everybody(drawn: tuple[NodeView, NodeView, Request]) -> None:
    before, view, request = drawn
    found = decided(view, request)
    if isinstance(found, Granted):
        assert not any(overlap(grant, each.place) for grant in found.grants for each in view.withheld)
    # It is what is in the way for now: whether the machine could ever serve the request does not depend on it.
    assert isinstance(found, str) == isinstance(decided(before, request), str)
    free = decided(before, request)
    if isinstance(free, Granted) and not any(across(g, each.place) for g in free.grants for each in view.withheld):
        assert isinstance(found, Granted)
    assert (explain(view, request).granted is not None) == isinstance(found, Granted)


@given(withholding(for_large=True))
def test_what_is_kept_for_large_requests_goes_to_those_that_name_its_size(
    drawn: tuple[NodeView, NodeView, Request],
) -> None:
    before, view, request = drawn
    found = decided(view, request)
    demand = request.demand
    named = isinstance(demand, MigSlice | WholeGpus)
    if isinstance(found, Granted):
        for grant in found.grants:
            for each in view.withheld:
                if overlap(grant, each.place):
                    assert named
                    assert not isinstance(grant, FractionalShare)
                    kept = each.place.slot
                    wanted = grant.slot
                    assert size_rank(None if wanted is None else wanted.profile) >= size_rank(
                        None if kept is None else kept.profile
                    )
    if isinstance(demand, WholeGpus):
        assert found == decided(before, request)


@given(withholding(for_large=False))
def test_a_view_that_withholds_is_the_same_as_json(drawn: tuple[NodeView, NodeView, Request]) -> None:
    _, view, _ = drawn
    assert view_from_dict(view_to_dict(view)) == view


@given(node_views(max_gpus=2), st.data())
def test_a_gpu_that_is_withheld_says_why(view: NodeView, data: st.DataObject) -> None:
    request = data.draw(requests_for(view))
    places = tuple(WithheldDevice(WholeGpu(gpu.uuid), "has reported an error (XID 79)") for gpu in view.node)
    found = decided(replace(view, withheld=places), request)
    if not isinstance(decided(view, request), Granted):
        assert not isinstance(found, Granted)
        return
    assert isinstance(found, Waiting)
    assert {each.reason for each in found.obstacles} <= {Reason.WITHHELD, *_other_reasons(view, request)}
    assert any("XID 79" in each.text for each in found.obstacles)


def _other_reasons(view: NodeView, request: Request) -> set[Reason]:
    return {each.obstacle.reason for each in explain(view, request).gpus if each.obstacle is not None}


@given(st.data())
def test_taking_cordons_back_is_named_where_it_lets_a_request_start_and_as_few_as_that_takes(
    data: st.DataObject,
) -> None:
    view = data.draw(node_views(max_gpus=3))
    assume(view.node.gpus)
    request = data.draw(requests_for(view))
    gpus = data.draw(st.lists(st.sampled_from(view.node.gpus), min_size=1, unique_by=lambda gpu: gpu.uuid))
    cordoned = replace(view, withheld=tuple(WithheldDevice(WholeGpu(gpu.uuid), "cordoned by ada") for gpu in gpus))
    found = [each for each in explain(cordoned, request).remedies if each.kind is RemedyKind.UNCORDON]
    waits = not isinstance(decided(cordoned, request), Granted)
    assert bool(found) == (waits and isinstance(decided(view, request), Granted))
    for remedy in found:
        named = {int(each) for each in remedy.text.partition("tranche uncordon ")[2].split()}
        assert named <= {gpu.index for gpu in gpus}
        back = {gpu.uuid for gpu in gpus if gpu.index in named}

        def granted(uuids: set[str]) -> bool:
            kept = tuple(each for each in cordoned.withheld if each.place.gpu_uuid not in uuids)
            return isinstance(decided(replace(cordoned, withheld=kept), request), Granted)

        assert granted(back)
        assert not any(granted(back - {uuid}) for uuid in back)


def test_what_is_faulty_or_kept_for_large_requests_is_for_no_administrator_to_give() -> None:
    gpu = gpu_on(FAMILY_BOARDS[0])
    for withheld in (
        WithheldDevice(WholeGpu(gpu.uuid), "broken", faulty=True),
        WithheldDevice(WholeGpu(gpu.uuid), "said so"),
    ):
        view = replace(view_of(gpu), withheld=(withheld,))
        kinds = [each.kind for each in explain(view, Request(WholeGpus(1))).remedies]
        assert (RemedyKind.UNCORDON in kinds) == withheld.by_administrator
