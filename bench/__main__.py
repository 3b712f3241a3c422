"""`python -m bench [--write] [NAME...]`: run the benchmarks of those names, or all; `make figures` writes their page."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from release.errors import ReleaseError

from bench import (
    acceptance,
    claim_latency,
    cluster,
    cluster_jobs,
    cutting,
    dashboard,
    decisions,
    dra_order,
    fleet,
    sharing,
    slurm,
)
from bench.report import Report

BENCHMARKS: Mapping[str, Callable[[Report], None]] = {
    "cutting": cutting.run,
    "decisions": decisions.run,
    "acceptance": acceptance.run,
    "sharing": sharing.run,
    "slurm": slurm.run,
    "dashboard": dashboard.run,
    "cluster": cluster.run,
    "cluster_jobs": cluster_jobs.run,
    "fleet": fleet.run,
    "dra_order": dra_order.run,
    "claim_latency": claim_latency.run,
}
"""In the order of their sections on the page."""
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "figures.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Figures beside baselines of the same run.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which benchmarks: {', '.join(BENCHMARKS)}; default: all"
    )
    parser.add_argument("--write", action="store_true", help=f"rewrite their sections of {PAGE.name}")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark is called {unknown[0]}; there are: {', '.join(BENCHMARKS)}")
    failed = []
    for name in options.names or BENCHMARKS:
        report = Report(f"{_conditions()}: `make figures BENCH={name}`.")
        try:
            BENCHMARKS[name](report)
        except Exception as error:  # the others are measured nevertheless
            failed.append(name)
            print(error if isinstance(error, ReleaseError) else traceback.format_exc(), file=sys.stderr, flush=True)
        else:
            if options.write:
                draft = PAGE.with_suffix(".draft")
                draft.write_text(with_section(PAGE.read_text(), name, report.markdown))
                draft.replace(PAGE)
    if failed:
        sys.exit(f"error: not measured, so the page still has their last figures: {', '.join(failed)}")


def with_section(page: str, name: str, blocks: list[str]) -> str:
    """The page with this section of a benchmark in place of its last one; each section has the name as a comment before it."""
    head, *found = re.split(r"^<!-- (\w+) -->\n", page, flags=re.MULTILINE)
    sections = dict(zip(found[::2], found[1::2], strict=True)) | {name: "\n\n".join(blocks) + "\n"}
    parts = [f"<!-- {each} -->\n{sections[each].strip()}\n" for each in BENCHMARKS if each in sections]
    return "\n".join([f"{head.strip()}\n", *parts])


def _conditions() -> str:
    """The day, the processor as the kernel names it, the cores, and their load just before the run."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    processor = found[1].strip() if found else platform.machine()
    day, load = datetime.now().astimezone().date(), os.getloadavg()[0]
    return f"{day}, {processor}, {os.cpu_count()} cores, load {load:.0f}"


if __name__ == "__main__":
    main()
