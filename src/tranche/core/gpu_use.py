"""The administrator's word on how a GPU may be shared."""

from __future__ import annotations

from enum import StrEnum


class GpuPolicy(StrEnum):
    """How Tranche may share a GPU; a whole one is given in any case, and what is there already stays until it is idle.

    AUTO: as each request needs it. MIG: in slices alone, each for one holder. SHARED: in parts of the uncut GPU alone.
    OFF: not at all.
    """

    AUTO = "auto"
    MIG = "mig"
    SHARED = "shared"
    OFF = "off"
