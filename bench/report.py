"""How a benchmark says what it measured: figures beside the baselines of the same run, in plain text on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TextIO


@dataclass(slots=True)
class Report:
    """Prints as it is told. `long` asks the benchmarks for their full, slow form."""

    long: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)

    def section(self, title: str, *notes: str) -> None:
        """Start a part of the report; the notes say what was run: sizes, seeds, repetitions."""
        print(f"\n{title}\n{'=' * len(title)}", file=self.out)
        for note in notes:
            print(note, file=self.out)
        print(file=self.out, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print rows under their column names: the first column to the left, the rest to the right."""
        lines = [list(map(str, columns)), *(list(map(str, row)) for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        for line in lines:
            cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            print("  ".join([line[0].ljust(widths[0]), *cells]).rstrip(), file=self.out)
        print(file=self.out, flush=True)

    def verdict(self, text: str, met: bool) -> None:
        print(f"{'met' if met else 'NOT MET'}: {text}", file=self.out, flush=True)


def figure(value: float) -> str:
    """A number with three or more significant digits: 1,234,567 or 12.3 or 0.0123."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def on_all_cores(calls: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
    """By key, what each function returns for the arguments behind it."""
    with ProcessPoolExecutor() as pool:
        jobs = {key: pool.submit(*call) for key, call in calls.items()}
        return {key: job.result() for key, job in jobs.items()}
