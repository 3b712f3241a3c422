"""How long a person waits for the smallest answer: `tranche gpus -o json` in a new process, beside an empty Python."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.report import Report

_RUNS = 20
_TARGET_MS = 150
_TARGET_RATIO = 2.5
_BASELINE = "python -c 'import click'"
_MACHINE = "p4d.24xlarge"
_TRANCHE = (sys.executable, "-c", "from tranche.cli.main import main; main()")


def run(report: Report) -> None:
    """Measure cold starts; the byte code and the simulator are there already, as after any first command."""
    report.section(
        "Cold start of the command line",
        f"simulated {_MACHINE}, {_RUNS} runs each, one after the other in turn; milliseconds of a new process",
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment(Path(folder))
        commands: dict[str, Sequence[str]] = {
            "python -c pass": (sys.executable, "-c", "pass"),
            _BASELINE: (sys.executable, "-c", "import click"),
            "tranche gpus -o json": (*_TRANCHE, "--simulate", _MACHINE, "gpus", "-o", "json"),
            "tranche gpus -o json, 56 slices": (*_TRANCHE, "--simulate", "cut", "gpus", "-o", "json"),
        }
        _prepare(environment)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for turn in range(_RUNS + 1):
            for name, command in commands.items():
                spent = _milliseconds(command, environment)
                if turn:  # the first turn only warms the file cache
                    times[name].append(spent)
    rows = []
    for name, measured in times.items():
        wall, processor = [each[0] for each in measured], [each[1] for each in measured]
        rows.append((name, f"{median(wall):.0f}", f"{min(wall):.0f}", f"{max(wall):.0f}", f"{median(processor):.0f}"))
    report.table(("command", "median ms", "min", "max", "processor ms"), rows)
    answer, baseline = (median(wall for wall, _ in times[name]) for name in ("tranche gpus -o json", _BASELINE))
    report.verdict(f"tranche gpus -o json starts and answers within {_TARGET_MS} ms", answer <= _TARGET_MS)
    claim = f"and in at most {_TARGET_RATIO} times the time of {_BASELINE}: {answer / baseline:.2f} times"
    report.verdict(claim, answer / baseline <= _TARGET_RATIO)


def _environment(folder: Path) -> dict[str, str]:
    variables = {"TRANCHE_SIM_ROOT": str(folder), "TRANCHE_SIM_TIME_SCALE": "0"}
    left_out = ("PYTHONDONTWRITEBYTECODE", "TRANCHE_STATE_DIR", "TRANCHE_SIMULATE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, **variables}


def _prepare(environment: Mapping[str, str]) -> None:
    """The machine, its ledger, and a second machine whose eight GPUs are cut into seven slices each."""
    for arguments in (
        ("sim", "create", _MACHINE, "--time-scale", "0"),
        ("--simulate", _MACHINE, "run", "--gpus", "1", "-q", "--", "true"),
        ("sim", "create", "cut", "--machine", _MACHINE, "--time-scale", "0"),
        ("--simulate", "cut", "layout", "apply", "-c", "all-1g.5gb"),
    ):
        subprocess.run((*_TRANCHE, *arguments), env=environment, check=True, capture_output=True)


def _milliseconds(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Wall time and processor time of one process; on an idle core the two are nearly equal."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, processor * 1000
