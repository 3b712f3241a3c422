"""Lines while something takes long, so that whoever waits sees that it goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]

PERIOD_SECONDS = 5.0


def say_beside(line: str) -> None:
    """Say it on stderr, beside what is printed for programs."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def telling(
    doing: str, say: Say, summary: Callable[[], str] = lambda: "", *, period: float = PERIOD_SECONDS
) -> Iterator[None]:
    """For the length of the block, say every `period` seconds what is done, for how long by now, and how far it is."""
    began = time.monotonic()
    over = threading.Event()

    def tell() -> None:
        while not over.wait(period):
            said = summary().strip()
            say(f"{doing}: {time.monotonic() - began:.0f} s" + (f", {said}" if said else ""))

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def run_with_progress(
    command: Sequence[str],
    doing: str,
    say: Say,
    *,
    summary: Callable[[Sequence[str]], str] = lambda lines: lines[-1] if lines else "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    period: float = PERIOD_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and tell of it: the summary is that of the lines which it has printed.

    What comes back has the exit code, and all that it printed as `stdout`. OSError when it cannot be started.
    """
    lines: list[str] = []
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            cwd=folder,
        ) as process,
        telling(doing, say, lambda: summary(tuple(lines)), period=period),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
    return subprocess.CompletedProcess(list(command), process.returncode, "".join(lines), "")
