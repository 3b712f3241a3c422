"""`tranche version`: Tranche, what it stands on, and the driver that it finds."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib import metadata, resources

import click

from tranche.cli.output import print_json, print_table
from tranche.cli.runtime import Settings, TrancheCommand, observe, output_option
from tranche.core.errors import TrancheError
from tranche.core.state import NodeState


@click.command(cls=TrancheCommand)
@output_option()
@click.pass_obj
def command(settings: Settings, /, output: str) -> None:
    """Print the versions of Tranche, the simulator, Python, the driver and NVML.

    Without a usable driver, the output shows the error instead of the driver's version. The exit code is still 0.
    """
    found = versions(lambda: observe(settings))
    if output == "json":
        print_json("Version", **found)
        return
    commit = "" if found["commit"] is None else f" (commit {found['commit']})"
    rows = [
        ("tranche", f"{found['version']}{commit}"),
        ("simulator", found["simulatorVersion"]),
        ("python", found["pythonVersion"]),
        ("driver", found["driverVersion"] or found["driverError"]),
        ("nvml", found["nvmlVersion"]),
    ]
    print_table(("SOFTWARE", "VERSION"), rows)


def versions(look: Callable[[], NodeState]) -> dict[str, str | None]:
    """The fields of a Version; where `look` fails, with its error instead of the driver's versions."""
    version = metadata.version("tranche-gpu")
    driver = nvml = error = None
    try:
        node = look()
        driver, nvml = node.driver_version, node.nvml_version
    except TrancheError as failure:
        error = failure.message
    return {
        "version": version,
        "commit": _commit(),
        "simulatorVersion": version,  # both packages are in one distribution
        "pythonVersion": platform.python_version(),
        "driverVersion": driver,
        "nvmlVersion": nvml,
        "driverError": error,
    }


def _commit() -> str | None:
    """The revision recorded by the wheel build, else the one that pip installed from a repository."""
    written = resources.files("tranche").joinpath("commit.txt")
    if written.is_file():
        return written.read_text().strip() or None
    try:
        origin = json.loads(metadata.distribution("tranche-gpu").read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    revision = origin.get("vcs_info", {}).get("commit_id")
    return str(revision) if revision else None
