"""MIG profile names: grammar, canonical form, and Kubernetes resource name.

A name is `[<C>c.]<G>g.<M>gb` with attributes `+a,b` or `-a,b` (never both): `1g.5gb`, `1c.3g.20gb`, `1g.24gb+me.all`,
`1g.24gb-me`. The grammar and its limits are those of mig-parted's v1 layout format.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tranche.core.errors import UsageError

_NAME = re.compile(
    r"(?:(?P<c>\d{1,9})c\.)?(?P<g>\d{1,9})g\.(?P<gb>\d{1,9})gb(?:(?P<sign>[+-])(?P<attributes>.+))?", re.ASCII
)
_ATTRIBUTE = re.compile(r"[A-Za-z](?:[A-Za-z0-9.]*[A-Za-z0-9])?", re.ASCII)


class ProfileName(NamedTuple):
    """A parsed MIG profile name.

    `compute` and `slices` count compute slices of the compute instance and of the GPU instance; `memory_gb` is the figure in
    the name, not an amount of memory. `added` and `removed` are attributes after `+` and `-`, sorted.
    """

    slices: int
    memory_gb: int
    compute: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        prefix = "" if self.compute == self.slices else f"{self.compute}c."
        suffix = ""
        if self.added:
            suffix = "+" + ",".join(self.added)
        elif self.removed:
            suffix = "-" + ",".join(self.removed)
        return f"{prefix}{self.slices}g.{self.memory_gb}gb{suffix}"

    @property
    def spans_gpu_instance(self) -> bool:
        """Whether the compute instance takes every compute slice of its GPU instance."""
        return self.compute == self.slices

    @property
    def gpu_instance(self) -> ProfileName:
        """The name of the enclosing GPU instance: the same without the `Nc.` part."""
        return ProfileName(self.slices, self.memory_gb, self.slices, self.added, self.removed)

    @property
    def has_attributes(self) -> bool:
        """Whether the name carries any `+` or `-` attribute."""
        return bool(self.added or self.removed)

    @property
    def resource_name(self) -> str:
        """The last part of the extended resource, as NVIDIA's device plugin names it: `mig-1g.5gb`, with `.` for `+`."""
        return "mig-" + str(self).replace("+", ".").replace(",", ".")


def size_rank(profile: ProfileName | None) -> tuple[int, int]:
    """A sort key for sizes: whole GPUs (None) are largest, then memory decides, then compute."""
    return (1 << 30, 0) if profile is None else (profile.memory_gb, profile.slices)


@lru_cache(maxsize=256)
def parse_profile(text: str) -> ProfileName:
    """Parse a profile name; raises UsageError with the broken rule."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise UsageError(f"'{text}' is not a MIG profile name", hint="profile names look like 1g.5gb, 2g.10gb+me")
    slices, memory_gb = int(match["g"]), int(match["gb"])
    compute = int(match["c"]) if match["c"] is not None else slices
    if slices == 0 or compute == 0:
        raise UsageError(f"'{text}' is not a MIG profile name: a slice count must be at least 1")
    if compute != slices and 2 * compute > slices + 1:
        raise UsageError(
            f"'{text}' is not a MIG profile name: a GPU instance of {slices} slices has no compute instance of {compute}"
        )
    attributes = _parse_attributes(text, match["attributes"]) if match["sign"] else ()
    if match["sign"] == "-":
        return ProfileName(slices, memory_gb, compute, removed=attributes)
    return ProfileName(slices, memory_gb, compute, added=attributes)


def _parse_attributes(text: str, joined: str) -> tuple[str, ...]:
    attributes = joined.split(",")
    for attribute in attributes:
        if _ATTRIBUTE.fullmatch(attribute) is None:
            raise UsageError(f"'{text}' is not a MIG profile name: '{attribute}' is not an attribute")
    if len(set(attributes)) != len(attributes):
        raise UsageError(f"'{text}' is not a MIG profile name: an attribute is given twice")
    return tuple(sorted(attributes))
