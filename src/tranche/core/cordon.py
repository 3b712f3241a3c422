"""An administrator's word that nothing more of a GPU is given away; whoever has something of it keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tranche.core.allocation import WholeGpu, WithheldDevice


class Cordon(NamedTuple):
    """Whose word it is, the reason in his words, "" without one, and since when, in seconds since the epoch."""

    gpu_uuid: str
    user: str
    reason: str
    since: float

    @property
    def why(self) -> str:
        """A clause for people."""
        return f"cordoned by {self.user}" + (f": {self.reason}" if self.reason else "")


def cordoned(cordons: Iterable[Cordon]) -> tuple[WithheldDevice, ...]:
    """The GPUs as decisions see them."""
    return tuple(WithheldDevice(WholeGpu(each.gpu_uuid), each.why) for each in cordons)
