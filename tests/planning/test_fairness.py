"""A fair queue serves those first who have used less for their weight, and in the long run everybody gets their part."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import some_of
from tranche.core.allocation import WHOLE, Allocation, Phase, WholeGpu
from tranche.core.keeper import PodKeeper, ProcessKeeper
from tranche.core.request import parse_request
from tranche.core.usage import (
    DAY_SECONDS,
    DayUsage,
    recent_use,
    usage_of,
    weighed_use,
    with_running,
)
from tranche.core.user_quota import EVERYONE, UserQuota
from tranche.planning.decide.fairness import FairOrder, group_in_order

ANN, BOB, CY, DEE = 1001, 1002, 1003, 1004
TODAY = 20_000
NOON = TODAY * DAY_SECONDS + DAY_SECONDS / 2
HOUR = 3600.0


def held(uid: int, created: float, part: float = 1.0) -> Allocation:
    keeper = ProcessKeeper(7, 1, uid=uid)
    size = round(part * WHOLE)
    return Allocation("a", parse_request(gpus="1"), (WholeGpu("G"),), Phase.ACTIVE, created, "", keeper, 1, size)


class Waiter(NamedTuple):
    name: str
    uid: int


def order(used: dict[int, float], groups: dict[int, str] | None = None, **weights: int) -> FairOrder:
    names = {"ann": str(ANN), "bob": str(BOB), "cy": str(CY), "dee": str(DEE)}
    quotas = {names.get(name, f"@{name}"): UserQuota(weight=weight) for name, weight in weights.items()}
    return FairOrder(used, groups or {}, {EVERYONE: UserQuota(weight=1), **quotas})


def turns(fair: FairOrder, *uids: int) -> list[int]:
    return [each.uid for each in fair.in_turn([Waiter(str(number), uid) for number, uid in enumerate(uids)])]


@given(st.floats(0, 4e9), st.floats(0, 300 * DAY_SECONDS), st.floats(0, 1))
def test_a_share_counts_once_for_all_its_time(created: float, seconds: float, part: float) -> None:
    share = held(ANN, created, part)
    days = list(usage_of(share, created + seconds))
    assert sum(each.share_seconds for each in days) == pytest.approx(seconds, abs=0.01)
    assert sum(each.gpu_seconds for each in days) == pytest.approx(seconds * share.gpu_millionths / WHOLE, abs=0.01)
    assert all(0 <= each.share_seconds <= DAY_SECONDS for each in days)
    assert sum(each.shares for each in days) == 1
    assert len({each.day for each in days}) == len(days)


def test_only_shares_of_known_users_count_and_never_before_they_began() -> None:
    assert not list(usage_of(held(-1, NOON), NOON + HOUR))
    assert not list(usage_of(held(ANN, NOON)._replace(keeper=PodKeeper("gpu")), NOON + HOUR))
    assert [each.share_seconds for each in usage_of(held(ANN, NOON), NOON - HOUR)] == [0.0], "the clock was set back"
    assert sum(each.share_seconds for each in usage_of(held(ANN, 0.0), NOON)) < 367 * DAY_SECONDS, "the clock was wrong"


def test_use_loses_half_of_its_value_in_seven_days_and_leaves_the_window() -> None:
    days = [DayUsage(TODAY - age, ANN, HOUR, HOUR, 1) for age in (0, 6, 7, 14)]
    assert recent_use(days, NOON) == {ANN: 2 * HOUR}
    assert weighed_use(days, NOON)[ANN] == pytest.approx(HOUR * (1 + 0.5 ** (6 / 7) + 0.5 + 0.25))
    assert recent_use([DayUsage(TODAY + 1, ANN, HOUR, HOUR, 1)], NOON) == {ANN: HOUR}, "the clock was set back"


def test_present_shares_count_until_now() -> None:
    usage = with_running([DayUsage(TODAY, ANN, HOUR, HOUR, 1)], [held(ANN, NOON - HOUR), held(BOB, NOON - 60)], NOON)
    assert recent_use(usage, NOON) == {ANN: 2 * HOUR, BOB: 60.0}


def test_the_least_use_for_its_weight_goes_first_and_equals_in_order_of_arrival() -> None:
    assert turns(order({ANN: 41 * HOUR, BOB: 3 * HOUR}), ANN, BOB, ANN, CY, BOB) == [CY, BOB, BOB, ANN, ANN]
    assert turns(order({ANN: 4 * HOUR, BOB: 3 * HOUR}, ann=2), ANN, BOB) == [ANN, BOB]
    waiters = [Waiter(name, uid) for name, uid in (("1", ANN), ("2", BOB), ("3", ANN))]
    assert list(order({}).in_turn(waiters)) == waiters


def test_a_group_is_one_party_and_its_members_share_what_it_gets() -> None:
    msc = {ANN: "@msc", BOB: "@msc"}
    used = {ANN: 3 * HOUR, BOB: 2 * HOUR, CY: 4 * HOUR}
    assert turns(order(used, msc, msc=1), ANN, BOB, CY) == [CY, BOB, ANN]
    assert turns(order(used, msc, msc=2), ANN, BOB, CY) == [BOB, ANN, CY]
    assert turns(order(used, {ANN: "@msc", CY: "@phd", BOB: "@phd"}, msc=1, phd=3), ANN, BOB, CY) == [BOB, CY, ANN]
    assert order(used, msc, msc=1).rivals(CY, ANN) == (str(CY), "@msc")
    assert order(used, msc, msc=1).rivals(BOB, ANN) == (str(BOB), str(ANN))


def test_a_member_of_several_groups_counts_in_the_first_with_a_weight() -> None:
    quotas = {"@b": UserQuota(weight=1), "@a": UserQuota(shares=1), "@c": UserQuota(weight=9), "7": UserQuota(weight=2)}
    assert group_in_order(["@c", "@a", "@b", "@z"], quotas) == "@b"
    assert group_in_order(["@a", "@z"], quotas) is None


@pytest.mark.parametrize("seed", some_of(range(3), 1))
def test_users_who_always_wait_get_their_part_in_the_long_run(seed: int) -> None:
    """Jobs of random length on eight GPUs for 60 days; ann has twice bob's weight, and cy and dee share a group's."""
    rng, gpus, now, end = random.Random(seed), 8, 0.0, 60.0 * DAY_SECONDS
    groups, weights = {CY: "@msc", DEE: "@msc"}, {"ann": 2, "msc": 3, "dee": 2}
    running: list[tuple[float, Allocation]] = []
    ended: list[DayUsage] = []
    while now < end:
        while len(running) < gpus:
            used = weighed_use(with_running(ended, [each for _, each in running], now), now)
            uid = turns(order(used, groups, **weights), ANN, BOB, CY, DEE)[0]
            running.append((now + rng.uniform(0.2, 12.0) * HOUR, held(uid, now)))
        running.sort(key=lambda each: each[0])
        now, over = running.pop(0)
        ended.extend(usage_of(over, now))
    got = Counter[int]()
    for each in ended:
        got[each.uid] += round(each.gpu_seconds)
    parts = {uid: seconds / sum(got.values()) for uid, seconds in got.items()}
    assert parts == pytest.approx({ANN: 2 / 6, BOB: 1 / 6, CY: 1 / 6, DEE: 2 / 6}, abs=0.02)
