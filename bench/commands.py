"""Commands of Tranche in new processes, on simulated machines in a folder, and how long they take."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TRANCHE = (sys.executable, "-c", "from tranche.cli.main import main; main()")
_LEFT_OUT = ("PYTHONDONTWRITEBYTECODE", "TRANCHE_STATE_DIR", "TRANCHE_SIMULATE")


def environment_of(folder: Path, **variables: str) -> dict[str, str]:
    """An environment in which commands see the simulated machines of that folder, and what else is named."""
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    return {**kept, "TRANCHE_SIM_ROOT": str(folder), **variables}


def tranche(environment: Mapping[str, str], *words: str) -> None:
    subprocess.run((*TRANCHE, *words), env=environment, check=True, capture_output=True)


def milliseconds(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Wall time of one process, and its processor time, which other work on the machine disturbs less."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1000, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000
