"""The decision lock: decisions are made one at a time, each in a moment. A slow one holds up all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tranche.core.errors import WaitTimeout
from tranche.node.locks.locks import FileLock, LockHolder, LockTimeout, lock_holder, stops_held_back
from tranche.node.state.session import StateFolder

_OTHERS_SECONDS = 60.0
_LEAST_SECONDS = 1.0


class WaitLimit(NamedTuple):
    """How long to wait: not at all (`wait` false), forever (`seconds` None), or at most `seconds`."""

    wait: bool = True
    seconds: float | None = None

    def with_others(self, spent: float) -> float | None:
        """For how many seconds others may still decide, after `spent` seconds; None means forever.

        Decisions are made one at a time and each takes a moment. Even without `wait`, others get a minute.
        """
        if not self.wait:
            return _OTHERS_SECONDS
        return None if self.seconds is None else max(_LEAST_SECONDS, self.seconds - spent)


_SLOW_SECONDS = 10.0
"""A decision takes a moment. Undoing what a dead process left may take longer, and resetting a GPU takes seconds."""


@contextmanager
def taking_turn(places: StateFolder, seconds: float | None) -> Iterator[None]:
    """Hold the decision lock. Raises WaitTimeout when another process has it for `seconds` more; None waits forever."""
    with stops_held_back(), _turn(places, seconds):
        yield


@contextmanager
def taking_gpu(path: Path, gpu_uuid: str, seconds: float | None) -> Iterator[FileLock]:
    """Hold the lock of a GPU, by its path. Raises WaitTimeout when another process works on the GPU for `seconds` more."""
    with stops_held_back(), _gpu(path, gpu_uuid, seconds) as lock:
        yield lock


def _turn(places: StateFolder, seconds: float | None) -> FileLock:
    try:
        return FileLock(places.decision_lock, seconds=seconds)
    except LockTimeout as error:
        holder = lock_holder(places.decision_lock) or LockHolder(0, 0.0)
        if seconds is not None and holder.seconds < seconds / 2:
            raise WaitTimeout(
                f"other processes held the decision lock, and this one did not get it within {seconds:.0f} s; "
                f"{holder} holds it now",
                hint="run the command again when there are fewer requests",
            ) from error
        raise _slow(holder) from error


def _gpu(path: Path, gpu_uuid: str, seconds: float | None) -> FileLock:
    try:
        return FileLock(path, seconds=seconds)
    except LockTimeout as error:
        holder = lock_holder(path) or LockHolder(0, 0.0)
        raise WaitTimeout(
            f"{holder} has been working on GPU {gpu_uuid} for {holder.seconds:.0f} s", hint=_hint(holder)
        ) from error


def slow_decision(places: StateFolder) -> WaitTimeout | None:
    """The error of a decision so slow that something must be wrong; None when there is none."""
    holder = lock_holder(places.decision_lock)
    return _slow(holder) if holder is not None and holder.seconds >= _SLOW_SECONDS else None


def _slow(holder: LockHolder) -> WaitTimeout:
    what = f"{holder} has been deciding for {holder.seconds:.0f} s, and no other process can decide in the meantime"
    return WaitTimeout(what, hint=_hint(holder))


def _hint(holder: LockHolder) -> str:
    ending = f"end it with: kill -9 {holder.pid}" if holder.pid else "end it"
    return f"if it hangs in a driver call, {ending}; the next command cleans up after it"
