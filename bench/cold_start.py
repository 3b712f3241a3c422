"""How long a person waits for the smallest answer: `tranche gpus -o json` in a new process, beside an empty Python."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.commands import TRANCHE, environment_of, milliseconds, tranche
from bench.report import Report

_RUNS = 20
_TARGET_MS = 150
_TARGET_RATIO = 2.5
_BASELINE = "python -c 'import click'"
_MACHINE = "p4d.24xlarge"


def run(report: Report) -> None:
    """Measure cold starts; the byte code and the simulator are there already, as after any first command."""
    report.section(
        "Cold start of the command line",
        f"simulated {_MACHINE}, {_RUNS} runs each, one after the other in turn; milliseconds of a new process",
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(Path(folder), TRANCHE_SIM_TIME_SCALE="0")
        commands: dict[str, Sequence[str]] = {
            "python -c pass": (sys.executable, "-c", "pass"),
            _BASELINE: (sys.executable, "-c", "import click"),
            "tranche gpus -o json": (*TRANCHE, "--simulate", _MACHINE, "gpus", "-o", "json"),
            "tranche gpus -o json, 56 slices": (*TRANCHE, "--simulate", "cut", "gpus", "-o", "json"),
        }
        _prepare(environment)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for turn in range(_RUNS + 1):
            for name, command in commands.items():
                spent = milliseconds(command, environment)
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


def _prepare(environment: Mapping[str, str]) -> None:
    """The machine, its ledger, and a second machine whose eight GPUs are cut into seven slices each."""
    for arguments in (
        ("sim", "create", _MACHINE, "--time-scale", "0"),
        ("--simulate", _MACHINE, "run", "--gpus", "1", "-q", "--", "true"),
        ("sim", "create", "cut", "--machine", _MACHINE, "--time-scale", "0"),
        ("--simulate", "cut", "layout", "apply", "-c", "all-1g.5gb"),
    ):
        tranche(environment, *arguments)
