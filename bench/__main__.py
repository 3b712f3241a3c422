"""`python -m bench [NAME...]`: run the benchmarks of those names, or all that are short and need no Kubernetes cluster."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from release.errors import ReleaseError

from bench import (
    acceptance,
    claim_latency,
    cluster,
    cluster_jobs,
    cold_start,
    cutting,
    dashboard,
    decisions,
    dra_order,
    fleet,
    sharing,
)
from bench.report import Report

BENCHMARKS: Mapping[str, Callable[[Report], None]] = {
    "cutting": cutting.run,
    "decisions": decisions.run,
    "acceptance": acceptance.run,
    "cold_start": cold_start.run,
    "dashboard": dashboard.run,
    "sharing": sharing.run,
    "cluster": cluster.run,
    "cluster_jobs": cluster_jobs.run,
    "fleet": fleet.run,
    "dra_order": dra_order.run,
    "claim_latency": claim_latency.run,
}
# Run only when named: they take long, or need root and change the machine while they run.
_ONLY_BY_NAME = ("claim_latency", "cluster", "cluster_jobs", "dra_order", "fleet", "sharing")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Figures beside baselines of the same run.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which benchmarks: {', '.join(BENCHMARKS)}; all but {', '.join(_ONLY_BY_NAME)} by default",
    )
    parser.add_argument("--long", action="store_true", help="the full, slow form of those that have one")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]}; there are: {', '.join(BENCHMARKS)}")
    report = Report(long=options.long)
    print(
        f"{_processor()}, {os.cpu_count()} cores; {platform.system()} {platform.release()}; Python {sys.version.split()[0]}"
    )
    for name in options.names or [name for name in BENCHMARKS if name not in _ONLY_BY_NAME]:
        began = time.monotonic()
        try:
            BENCHMARKS[name](report)
        except ReleaseError as error:
            sys.exit(f"error: {error}")
        print(f"({name} took {time.monotonic() - began:.0f} s)", flush=True)


def _processor() -> str:
    """The processor's name as the kernel gives it, else the machine type."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
