"""No user gets more than the administrator allows, and a request beyond that holds no other up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.test_allocate import allocated
from tests.strategies import FAMILY_BOARDS, gpu_on, requests_for, sharing_views, view_of
from tranche.core.allocation import (
    Allocation,
    ComputeSlice,
    FractionalShare,
    Grant,
    NodeView,
    Slice,
    WholeGpu,
    size_of,
)
from tranche.core.errors import QuotaExceeded, TrancheError, UsageError
from tranche.core.keeper import ProcessKeeper
from tranche.core.quantity import GIB
from tranche.core.request import Request, parse_request
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import GpuState, MigMode
from tranche.core.user_quota import EVERYONE, UserQuota, parse_quota, quota_of
from tranche.documents.holder_names import NO_NAMES
from tranche.documents.reasons import summed_up
from tranche.planning.decide.allocate import Granted, Waiting, decide
from tranche.planning.decide.foresee import without
from tranche.planning.decide.obstacle import Reason
from tranche.planning.decide.queue import WaitingRequest, may_start, outlooks, startable
from tranche.planning.decide.recording import view_from_dict, view_to_dict
from tranche.planning.explain.explanation import explain

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
ANN, BOB, CY = 1001, 1002, 1003


def empty(gpus: int = 1, **quotas: UserQuota) -> NodeView:
    """A100s in MIG mode; `ann` and `bob` name users, `others` everyone."""
    names = {"ann": str(ANN), "bob": str(BOB), "others": EVERYONE}
    view = view_of(*(gpu_on(A100, number, mode=MigMode.ENABLED, instances=[]) for number in range(gpus)))
    return replace(view, quotas={names[name]: each for name, each in quotas.items()}, asker=ANN)


def given_to(view: NodeView, uid: int, granted: Granted, request: Request) -> NodeView:
    after = allocated(view, granted, request)
    *before, new = after.allocations
    return replace(after, allocations=(*before, new._replace(keeper=ProcessKeeper(uid=uid))))


def filled(view: NodeView, uid: int, request: Request) -> tuple[NodeView, int]:
    """The view with as many of these requests as the user gets, and their number."""
    count = 0
    while isinstance(decision := decide(replace(view, asker=uid), request), Granted):
        view, count = given_to(view, uid, decision, request), count + 1
    return view, count


@pytest.mark.parametrize(
    ("limits", "request_", "count"),
    [
        (UserQuota(gpu_percent=100), parse_request(mig_profile="1g.5gb"), 7),
        (UserQuota(gpu_percent=99), parse_request(mig_profile="1g.5gb"), 6),
        (UserQuota(gpu_percent=150), parse_request(mig_profile="3g.20gb"), 3),
        (UserQuota(gpu_percent=114), parse_request(mig_profile="4g.20gb"), 1),  # 4 of 7 compute slices, twice 57.1 %
        (UserQuota(gpu_percent=200), parse_request(gpus="1"), 2),
        (UserQuota(memory=40 * GIB), parse_request(mig_profile="3g.20gb"), 2),
        (UserQuota(memory=39 * GIB), parse_request(mig_profile="3g.20gb"), 1),
        (UserQuota(shares=3), parse_request(mig_profile="1g.5gb"), 3),
        (UserQuota(shares=3), parse_request(gpus="2"), 1),  # each of its GPUs is a share
        (UserQuota(shares=4), parse_request(mig_profile="1g.5gb", count="3"), 1),
        (UserQuota(200, 12 * GIB, 9), parse_request(mig_profile="1g.5gb"), 2),
        (UserQuota(), parse_request(gpus="1"), 4),
    ],
    ids=str,
)
def test_a_user_gets_so_many_and_another_user_the_rest(limits: UserQuota, request_: Request, count: int) -> None:
    view, got = filled(empty(4, ann=limits), ANN, request_)
    assert got == count
    others, _ = filled(empty(4), ANN, request_)
    assert filled(view, BOB, request_)[1] == len(others.allocations) - count, "the limit is ann's"


def test_own_limits_take_the_place_of_everyones_and_root_has_only_its_own() -> None:
    limits = {EVERYONE: UserQuota(shares=1), str(ANN): UserQuota(gpu_percent=100)}
    assert quota_of(limits, ANN) == UserQuota(gpu_percent=100, shares=1)
    assert quota_of({**limits, str(ANN): UserQuota(shares=0)}, ANN) == UserQuota(shares=0)
    assert quota_of(limits, BOB) == UserQuota(shares=1)
    assert quota_of(limits, 0) is None
    assert quota_of(limits, -1) is None
    assert quota_of({**limits, "0": UserQuota(shares=2)}, 0) == UserQuota(shares=2)


def test_what_a_user_may_never_hold_is_refused_at_once() -> None:
    view = empty(2, ann=UserQuota(gpu_percent=150))
    with pytest.raises(QuotaExceeded, match=r"the user may hold at most 1.5 GPUs at once, and this request needs 2$"):
        decide(view, parse_request(gpus="2"))
    view = given_to(view, ANN, _granted(view, parse_request(gpus="1")), parse_request(gpus="1"))
    waits = decide(view, parse_request(gpus="1"))
    assert isinstance(waits, Waiting)
    assert {each.reason for each in waits.obstacles} == {Reason.QUOTA}
    assert (
        summed_up(waits, NO_NAMES)
        == "the user may hold at most 1.5 GPUs at once, already holds 1, and this request needs 1"
    )


def test_a_refusal_does_not_speak_of_what_the_user_holds() -> None:
    view, _ = filled(empty(2, ann=UserQuota(gpu_percent=30)), ANN, parse_request(mig_profile="1g.5gb"))
    with pytest.raises(QuotaExceeded, match=r"the user may hold at most 0.3 GPUs at once, and this request needs 1$"):
        decide(view, parse_request(gpus="1"))


@pytest.mark.parametrize(
    ("limit", "request_", "words"),
    [
        (
            UserQuota(gpu_percent=14),
            parse_request(mig_profile="1g.5gb"),
            "may hold at most 0.14 GPUs at once, and this request needs 0.15",
        ),
        (
            UserQuota(memory=40 * GIB - 1),
            parse_request(gpus="1"),
            "may hold at most 39.99 GiB at once, and this request needs 40 GiB",
        ),
        (
            UserQuota(memory=500 * 2**20),
            parse_request(mig_profile="1g.5gb"),
            "may hold at most 500 MiB at once, and this request needs 48",
        ),
        (UserQuota(shares=2), parse_request(gpus="3"), "may hold at most 2 shares at once, and this request needs 3"),
    ],
    ids=str,
)
def test_what_exceeds_a_limit_also_looks_larger(limit: UserQuota, request_: Request, words: str) -> None:
    with pytest.raises(QuotaExceeded, match=words):
        decide(empty(4, ann=limit), request_)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "left out"])
def test_a_share_counts_in_full_while_its_gpu_does_not_show_what_it_has(recorded: bool, lost: bool) -> None:
    view = empty(3, ann=UserQuota(memory=41 * GIB))
    view = given_to(view, ANN, _granted(view, parse_request(gpus="1")), parse_request(gpus="1"))
    (share,) = view.allocations
    if recorded:
        view = replace(view, allocations=(share._replace(memory=size_of(share.grants, view.node).memory),))
    gone = {each.gpu_uuid for each in share.grants}
    here = [replace(gpu, lost=True, memory=0, profiles=()) if gpu.uuid in gone else gpu for gpu in view.node]
    gpus = tuple(each for each in here if lost or each.uuid not in gone)
    for request in (parse_request(gpus="1"), parse_request(mig_profile="1g.5gb")):
        decision = decide(replace(view, node=replace(view.node, gpus=gpus)), request)
        assert isinstance(decision, Waiting)
        assert "holds 40 GiB" in {each.reason: each.text for each in decision.obstacles}[Reason.QUOTA]


def test_the_slices_of_a_lost_gpu_count_as_they_did() -> None:
    view, got = filled(empty(1, ann=UserQuota(gpu_percent=200)), ANN, parse_request(mig_profile="1g.5gb"))
    sizes = [size_of(each.grants, view.node).gpu_millionths for each in view.allocations]
    view = replace(
        view,
        allocations=tuple(
            each._replace(gpu_millionths=size) for each, size in zip(view.allocations, sizes, strict=True)
        ),
    )
    lost = replace(view.node.gpus[0], lost=True, memory=0, profiles=(), instances=())
    view = replace(view, node=replace(view.node, gpus=(lost, *empty(4).node.gpus[1:])))
    assert (got, filled(view, ANN, parse_request(gpus="1"))[1]) == (7, 1)


def _granted(view: NodeView, request: Request) -> Granted:
    decision = decide(view, request)
    assert isinstance(decision, Granted), decision
    return decision


def test_a_part_that_the_limit_allows_is_given_where_a_slice_would_exceed_it() -> None:
    view = sharing(empty(4, ann=UserQuota(memory=4 * GIB)))
    decision = _granted(view, parse_request(gpu_memory="2Gi"))
    (grant,) = decision.grants
    assert isinstance(grant, FractionalShare)
    assert isinstance(_granted(replace(view, asker=BOB), parse_request(gpu_memory="2Gi")).grants[0], Slice)


def sharing(view: NodeView) -> NodeView:
    means = MachineSharing(frozenset({Sharing.MPS}), {}, 48)
    return replace(view, node=replace(view.node, sharing=means))


def test_a_request_beyond_the_limit_holds_no_other_up_and_starts_when_a_share_ends() -> None:
    view = empty(1, ann=UserQuota(shares=1))
    view = given_to(view, ANN, _granted(view, parse_request(mig_profile="1g.5gb")), parse_request(mig_profile="1g.5gb"))
    waiters = [
        WaitingRequest("ann", parse_request(mig_profile="2g.10gb"), ANN),
        WaitingRequest("bob", parse_request(mig_profile="2g.10gb"), BOB),
        WaitingRequest("ann again", parse_request(mig_profile="2g.10gb"), ANN),
    ]
    assert list(startable(view, waiters)) == ["bob"]
    assert isinstance(may_start(view, waiters, "bob"), Granted)
    assert [isinstance(each, Granted) for each in outlooks(view, waiters)] == [False, True, False]
    ended = without(view, [view.allocations[0].id])
    assert list(startable(ended, waiters)) == ["ann"]


def test_a_groups_limit_holds_for_all_its_members_together_beside_their_own() -> None:
    view = empty(4, ann=UserQuota(gpu_percent=200))
    view = replace(view, quotas={**view.quotas, "@msc": UserQuota(gpu_percent=300)})
    view = replace(view, groups={str(ANN): ("@msc",), str(BOB): ("@msc",)})
    one = parse_request(gpus="1")
    view, anns = filled(view, ANN, one)
    view, bobs = filled(view, BOB, one)
    assert (anns, bobs) == (2, 1)
    told = [each.text for each in _waiting(replace(view, asker=BOB), one).obstacles if each.reason is Reason.QUOTA]
    assert told[-1] == "group msc may hold at most 3 GPUs at once, already holds 3, and this request needs 1"
    assert filled(view, CY, one)[1] == 1, "others are in no group"
    with pytest.raises(QuotaExceeded, match="group msc may hold at most 3 GPUs at once, and this request needs 4"):
        decide(replace(view, asker=BOB), parse_request(gpus="4"))


def test_a_user_who_has_used_the_hours_of_the_week_waits_and_is_not_refused() -> None:
    view = empty(1, ann=UserQuota(gpu_hours=10))
    view = replace(view, recent={str(ANN): 10 * 3600.0 - 1})
    assert decide(view, parse_request(gpus="1"))
    view = replace(view, recent={str(ANN): 10 * 3600.0 + 1500})
    assert [each.text for each in _waiting(view, parse_request(gpus="1")).obstacles] == [
        "the user may use at most 10 GPU-hours in seven days, and has used 10"
    ]
    assert decide(replace(view, asker=BOB), parse_request(gpus="1"))
    group = replace(empty(1), quotas={"@msc": UserQuota(gpu_hours=1)}, groups={str(ANN): ("@msc",)})
    assert decide(replace(group, recent={str(ANN): 7200.0}), parse_request(gpus="1"))
    assert "group msc may use at most 1 GPU-hour in seven days" in str(
        _waiting(replace(group, recent={"@msc": 7200.0}), parse_request(gpus="1")).obstacles[0]
    )


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (UserQuota(gpu_percent=0), "may hold at most 0 GPUs at once, and this request needs 1"),
        (UserQuota(shares=0), "may hold at most 0 shares at once, and this request needs 1"),
        (UserQuota(gpu_hours=0), "may use at most 0 GPU-hours in seven days"),
    ],
    ids=str,
)
def test_a_limit_of_nothing_refuses_every_request(quota: UserQuota, said: str) -> None:
    with pytest.raises(QuotaExceeded, match=f"{said}$"):
        decide(empty(1, ann=quota), parse_request(gpus="1"))


def _waiting(view: NodeView, request: Request) -> Waiting:
    decision = decide(view, request)
    assert isinstance(decision, Waiting)
    return decision


def test_the_explanation_says_which_limit_and_whose_end_helps() -> None:
    view = empty(2, ann=UserQuota(gpu_percent=100))
    for profile in ("1g.5gb", "3g.20gb", "2g.10gb"):
        request = parse_request(mig_profile=profile)
        view = given_to(view, ANN, _granted(view, request), request)
    answer = explain(view, parse_request(mig_profile="3g.20gb"))
    assert answer.summary == (
        "--mig-profile 3g.20gb waits: the user may hold at most 1 GPU at once, already holds 0.93, and this request needs 0.5"
    )
    (remedy,) = answer.remedies
    assert remedy.allocation_ids == (view.allocations[1].id,)
    assert explain(replace(view, asker=BOB), parse_request(mig_profile="3g.20gb")).granted


limits_ = st.builds(
    UserQuota,
    st.none() | st.integers(10, 400),
    st.none() | st.integers(1, 200).map(lambda gib: gib * GIB),
    st.none() | st.integers(1, 5),
)


@given(st.data())
def test_no_user_ever_holds_more_than_the_limits(data: st.DataObject) -> None:
    view = data.draw(sharing_views())
    view = replace(view, allocations=tuple(map(_of_nobody, view.allocations)))
    view = replace(view, quotas=data.draw(st.dictionaries(st.sampled_from([str(ANN), str(BOB), EVERYONE]), limits_)))
    for number in range(data.draw(st.integers(1, 8))):
        uid, request = data.draw(st.sampled_from([ANN, BOB])), data.draw(requests_for(view))
        try:
            decision = decide(replace(view, asker=uid), request)
        except TrancheError:
            continue
        if isinstance(decision, Granted):
            view = given_to(view, uid, decision, request)
            assert _held(view, uid) <= _most(view.quotas, uid), number


def _of_nobody(allocation: Allocation) -> Allocation:
    keeper = allocation.keeper
    return allocation._replace(keeper=keeper._replace(uid=-1)) if isinstance(keeper, ProcessKeeper) else allocation


class _Totals(tuple[Fraction, int, int]):
    """GPUs, bytes and shares, as this test counts them."""

    def __le__(self, most: object) -> bool:
        assert isinstance(most, tuple)
        return all(limit is None or mine <= limit for mine, limit in zip(self, most, strict=True))


def _most(limits: Mapping[str, UserQuota], uid: int) -> tuple[Fraction | None, int | None, int | None]:
    percent, memory, shares, *_ = quota_of(limits, uid) or UserQuota()
    return None if percent is None else Fraction(percent, 100), memory, shares


def _held(view: NodeView, uid: int) -> _Totals:
    own = [each for each in view.allocations if isinstance(each.keeper, ProcessKeeper) and each.keeper.uid == uid]
    amounts = [_counted(grant, view.node.gpu(grant.gpu_uuid)) for each in own for grant in each.grants]
    amounts = [(Fraction(int(gpus * 10**6), 10**6), memory) for gpus, memory in amounts]  # as the product rounds
    return _Totals((sum((each[0] for each in amounts), Fraction(0)), sum(each[1] for each in amounts), len(amounts)))


def _counted(grant: Grant, gpu: GpuState) -> tuple[Fraction, int]:
    assert not isinstance(grant, ComputeSlice)
    if isinstance(grant, WholeGpu):
        return Fraction(1), gpu.usable_memory
    if isinstance(grant, FractionalShare):
        return Fraction(grant.memory, gpu.usable_memory), grant.memory
    profile = gpu.profile(grant.profile)
    assert profile is not None
    most = max(each.slices for each in gpu.profiles)
    return max(Fraction(profile.slices, most), Fraction(profile.size, gpu.memory_slices)), profile.memory or 0


@given(st.data())
def test_waiters_beyond_their_limits_change_nothing_for_others(data: st.DataObject) -> None:
    view = replace(data.draw(sharing_views()), quotas={str(ANN): UserQuota(shares=0)})
    asked = data.draw(st.lists(requests_for(view), min_size=1, max_size=4))
    bobs = [WaitingRequest(f"b-{number}", request, BOB) for number, request in enumerate(asked)]
    anns = [WaitingRequest(f"a-{number}", request, ANN) for number, request in enumerate(asked)]
    mixed = [each for pair in zip(anns, bobs, strict=True) for each in pair]
    assert list(startable(view, mixed)) == list(startable(view, bobs))
    assert list(map(_same, outlooks(view, mixed)))[1::2] == list(map(_same, outlooks(view, bobs)))


def _same(outlook: object) -> object:
    return str(outlook) if isinstance(outlook, TrancheError) else outlook


@given(st.data())
def test_without_a_limit_in_the_way_nothing_changes(data: st.DataObject) -> None:
    view = data.draw(sharing_views())
    request = data.draw(requests_for(view))
    limited = replace(view, quotas={str(ANN): UserQuota(10**6, 10**18, 10**6), str(BOB): UserQuota(1)}, asker=ANN)
    try:
        expected = decide(view, request)
    except TrancheError as error:
        with pytest.raises(type(error)):
            decide(limited, request)
        return
    assert decide(limited, request) == expected


def test_a_recorded_view_keeps_the_limits() -> None:
    view = replace(empty(1, ann=UserQuota(50), others=UserQuota(memory=GIB, shares=2)), asker=BOB)
    assert view_from_dict(json.loads(json.dumps(view_to_dict(view)))) == view


def test_limits_are_read_as_they_are_written() -> None:
    assert parse_quota("1.5", "40G", "8") == UserQuota(150, 40 * 10**9, 8)
    assert str(parse_quota("1.5", "40Gi", "8")) == "1.5 GPUs, 40Gi of GPU memory, 8 shares"
    assert str(UserQuota(100, None, 1)) == "1 GPU, 1 share"
    assert str(UserQuota()) == "no limit"
    for wrong in (
        ("1.234", None, None),
        ("1000000", None, None),
        ("-1", None, None),
        ("one", None, None),
        (None, "40", None),
        (None, "9223372037G", None),
        (None, "99999999999999999G", None),
        (None, None, "2.5"),
    ):
        with pytest.raises(UsageError):
            parse_quota(*wrong)
