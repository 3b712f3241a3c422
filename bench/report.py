"""How a benchmark says what it measured: figures beside the baselines of the same run, as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Report:
    """Prints as it is told, and keeps the same as Markdown. `conditions` stands under the first title: date and machine."""

    conditions: str = ""
    markdown: list[str] = field(default_factory=list)

    def section(self, title: str, *notes: str) -> None:
        """Start a part of the report; the notes say what was run and what the rows mean."""
        first = [] if self.markdown else [self.conditions]
        _print(f"\n{title}\n{'=' * len(title)}", *first, *notes, "")
        level = "###" if self.markdown else "##"
        self.markdown += filter(None, [f"{level} {title}", *first, "\n".join(notes)])

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print rows under their column names: the first column to the left, the rest to the right."""
        lines = [list(map(str, columns)), *(list(map(str, row)) for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        for line in lines:
            cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            _print("  ".join([line[0].ljust(widths[0]), *cells]).rstrip())
        _print("")
        head, *body = (f"| {' | '.join(line)} |" for line in lines)
        self.markdown.append("\n".join([head, f"|---|{'---:|' * (len(columns) - 1)}", *body]))

    def verdict(self, text: str, met: bool) -> None:
        """Say whether a goal, a sentence of its own, was met."""
        line = f"Goal {'met' if met else 'not met'}: {text}"
        _print(line)
        self.markdown.append(line)


def _print(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


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
