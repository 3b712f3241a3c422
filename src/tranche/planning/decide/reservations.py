"""Reservations: which GPUs they close to a request, and when one is over. Pure.

The decision, the promised starts and the explanation all ask `closing`, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tranche.core.allocation import Grant, NodeView
from tranche.core.keeper import ProcessKeeper
from tranche.core.quantity import format_duration
from tranche.core.reservation import GIVEN_UP_SECONDS, Reservation
from tranche.planning.decide.time_limits import longest_before

_ROUNDED = ((7200, 3600), (1200, 600))
"""A waiting command says its limit again when it changes, so long limits are told in hours, shorter ones in ten minutes."""


def closing(view: NodeView, gpu_uuid: str, until: float) -> Reservation | None:
    """The reservation that closes the GPU, at the view's time, to a share of the view's asker that is free by `until`.

    Until it begins, it closes the GPU to every share that may last longer. Then it closes the GPU to all but its own users.
    """
    for each in view.reservations:
        mine = view.time >= each.begins and is_for(each, view, view.asker)
        if gpu_uuid in each.gpu_uuids and until > each.begins and not mine and not over(view, each):
            return each
    return None


def is_for(reservation: Reservation, view: NodeView, uid: int) -> bool:
    """Whether the reservation is for that user."""
    return not {str(uid), *view.groups.get(str(uid), ())}.isdisjoint(reservation.users)


def over(view: NodeView, reservation: Reservation) -> str:
    """Why the reservation is over at the view's time, in words; "" if it is not."""
    if view.time >= reservation.ends:
        return "its time is over"
    late = view.time >= reservation.begins + GIVEN_UP_SECONDS and reservation.users and not reservation.used
    if late and not in_use(view, reservation):
        return f"none of its users has used it within {format_duration(round(GIVEN_UP_SECONDS))}"
    return ""


def in_use(view: NodeView, reservation: Reservation) -> bool:
    """Whether a user that the reservation is for holds any of its GPUs."""
    held = (each for each in view.allocations if any(grant.gpu_uuid in reservation.gpu_uuids for grant in each.grants))
    return any(isinstance(each.keeper, ProcessKeeper) and is_for(reservation, view, each.keeper.uid) for each in held)


def reserved_on(view: NodeView, gpu_uuid: str) -> Reservation | None:
    """The GPU's current reservation, or its next one."""
    return next((each for each in view.reservations if gpu_uuid in each.gpu_uuids and not over(view, each)), None)


def first_used(view: NodeView, grants: Iterable[Grant] = (), waiting: Collection[int] = ()) -> Iterator[Reservation]:
    """The reservations that have begun and count as used from now on; the view's asker gets the `grants` now.

    A user who is `waiting` uses them too: a command that goes on past the beginning may be in the way.
    """
    gpus = {each.gpu_uuid for each in grants}
    for each in view.reservations:
        if each.used or not each.begins <= view.time < each.ends:
            continue
        gets = is_for(each, view, view.asker) and not gpus.isdisjoint(each.gpu_uuids)
        if gets or in_use(view, each) or any(is_for(each, view, uid) for uid in waiting):
            yield each


def why_closed(reservation: Reservation, now: float) -> str:
    """A clause for people whose command may not start now."""
    limit = longest_before(reservation.begins, now)
    for least, unit in _ROUNDED:
        if limit >= least:
            limit = limit // unit * unit
            break
    before = f"; with --time {format_duration(limit)} or less, a command can start before it" if limit else ""
    return f"{reservation}{before}"
