"""Reservations: GPUs that an administrator sets aside, for some users or for nobody, during a time."""

from __future__ import annotations

from typing import NamedTuple

GIVEN_UP_SECONDS = 900.0
"""How long after its beginning a reservation is given up if nobody that it is for has held any of its GPUs since."""


class Reservation(NamedTuple):
    """GPUs that are set aside from `begins` to `ends`, in seconds since the epoch.

    `users` are the users that it is for, by uid as text, and groups as in quotas; `names` names them for people. Without them,
    nobody may start commands. `user` made it. `used` means that someone that it is for has held one of its GPUs since it began.
    """

    id: str
    gpu_uuids: tuple[str, ...]
    begins: float
    ends: float
    users: tuple[str, ...] = ()
    names: str = ""
    user: str = ""
    used: bool = False

    @property
    def hours(self) -> str:
        """When it is, for people."""
        from tranche.core.moment import span  # most machines have no reservations

        return span(self.begins, self.ends)

    def __str__(self) -> str:
        return f"reserved for {self.names or 'maintenance'} from {self.hours}"
