"""Reservations in the register: only their time or their users' absence ends them, whatever the clock shows in between."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

from tests.node.machines import node_of, start_share
from tests.node.processes import isolated
from tranche.core.events import ReservationEnded
from tranche.core.request import Request, WholeGpus
from tranche.core.reservation import GIVEN_UP_SECONDS, Reservation
from tranche.local.queue import Queue
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.policy_change import reserve
from tranche.node.store import records
from tranche.planning.decide.allocate import Waiting, decide

NOW = 1_000_000.0
BEGINS, ENDS = NOW + 3600.0, NOW + 7200.0


class _Clock:
    """A host whose clock the test sets."""

    def __init__(self, host: Host) -> None:
        self.host, self.now = host, NOW
        host.clock = lambda: self.now

    def reserve(self, uid: int) -> None:
        reserve(self.host, Reservation("r", (), BEGINS, ENDS, (str(uid),), "ann", "root"), 1)

    def standing(self, now: float) -> bool:
        """Whether the reservation is still in the register after a look at that time."""
        self.now = now
        self.host.view()
        with self.host.ledger.read() as db:
            return bool(records.reservations(db))

    def start(self, now: float) -> HeldAllocation | Waiting:
        """What this process gets at that time."""
        self.now = now
        place = self.host.enqueue(Request(WholeGpus(1)), command="work", pid=os.getpid())
        found = start_share(
            self.host, place, lambda view: decide(replace(view, asker=self.host.uid), Request(WholeGpus(1)))
        )
        if isinstance(found, Waiting):
            self.host.leave(place)
        return found


@isolated
def test_a_clock_that_goes_back_gives_nothing_up(tmp_path: Path) -> None:
    with node_of(tmp_path, "A100-40GB").host() as host:
        clock = _Clock(host)
        clock.reserve(host.uid + 1)
        late = BEGINS + GIVEN_UP_SECONDS
        for now in (BEGINS, late - 1, NOW, BEGINS - 1, late - 1):
            assert clock.standing(now)
            assert isinstance(clock.start(now), Waiting)
        assert not clock.standing(late)
        assert isinstance(host.events(last=1)[0].data, ReservationEnded)
        assert isinstance(clock.start(late), HeldAllocation)


@isolated
def test_the_grant_to_its_user_keeps_a_reservation_to_its_end(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB")
    with node.host() as host:
        clock = _Clock(host)
        clock.reserve(host.uid)
        assert isinstance(clock.start(BEGINS - 1), Waiting)
        held = clock.start(BEGINS)
        assert isinstance(held, HeldAllocation)
        host.give_back(held, why="ended")
    with node.host() as again:
        clock = _Clock(again)
        for now in (ENDS - 1, NOW, ENDS - 1):
            assert clock.standing(now)
        assert not clock.standing(ENDS)


@isolated
def test_a_user_who_waits_for_a_command_that_goes_on_keeps_the_reservation(tmp_path: Path) -> None:
    with node_of(tmp_path, "A100-40GB").host() as host:
        clock = _Clock(host)
        clock.reserve(host.uid)
        clock.now = BEGINS + 1
        host.enqueue(Request(WholeGpus(1)), command="work", pid=os.getpid())
        assert clock.standing(BEGINS + GIVEN_UP_SECONDS - 1)
        assert clock.standing(BEGINS + GIVEN_UP_SECONDS)
        assert not clock.standing(ENDS)


@isolated
def test_a_waiting_command_wakes_when_a_reservation_begins_ends_or_may_be_given_up(tmp_path: Path) -> None:
    with node_of(tmp_path, "A100-40GB").host() as host:
        clock = _Clock(host)
        queue = Queue(host, clock=lambda: clock.now)
        clock.now = NOW
        assert queue._turning_point() == math.inf
        clock.reserve(host.uid + 1)
        for now, expected in ((NOW, BEGINS), (BEGINS, BEGINS + GIVEN_UP_SECONDS), (BEGINS + GIVEN_UP_SECONDS, ENDS)):
            clock.now = now
            assert queue._turning_point() == expected
        clock.now = ENDS
        assert queue._turning_point() == math.inf
