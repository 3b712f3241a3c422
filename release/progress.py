"""Lines while something takes long, so that whoever waits sees that it goes on."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Say = Callable[[str], None]

PERIOD_SECONDS = 5.0


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
    """Run a command to its end; every `period` seconds, say what is done, for how long, and a summary of what it has printed.

    What comes back has the exit code, and all that it printed as `stdout`. OSError when it cannot be started.
    """
    began = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        cwd=folder,
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
        reader.start()
        while True:
            try:
                process.wait(period)
                break
            except subprocess.TimeoutExpired:
                said = summary(lines).strip()
                say(f"{doing}: {time.monotonic() - began:.0f} s" + (f", {said}" if said else ""))
        reader.join()
    return subprocess.CompletedProcess(list(command), process.returncode, "".join(lines), "")
