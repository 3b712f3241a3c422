"""Two processes that build or install the same thing would disturb each other: the second waits, and says so."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tranche_simulator.build import cache_directory


@contextmanager
def one_at_a_time(name: str, say: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Let no other process of this user do what has that name meanwhile."""
    folder = cache_directory()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that gets {name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
