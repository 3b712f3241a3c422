"""`tranche version`: Tranche, what it stands on, and the driver that it finds."""

from __future__ import annotations

import click

from tranche.cli.output import print_json, print_table
from tranche.cli.runtime import Settings, TrancheCommand, open_driver, output_option
from tranche.core.errors import TrancheError
from tranche.node.health.software import software


@click.command(cls=TrancheCommand)
@output_option()
@click.pass_obj
def command(settings: Settings, /, output: str) -> None:
    """Print the versions of Tranche, the simulator, Python, the driver and NVML.

    Without a usable driver, the output has the error instead of the driver's version. The exit code is still 0.
    """
    made = software()
    driver = nvml = error = None
    try:
        with open_driver(settings) as opened:
            node = opened.observe()
            driver, nvml = node.driver_version, node.nvml_version
    except TrancheError as failure:
        error = failure.message
    if output == "json":
        print_json(
            "Version",
            version=made.version,
            commit=made.commit,
            simulatorVersion=made.simulator_version,
            pythonVersion=made.python_version,
            driverVersion=driver,
            nvmlVersion=nvml,
            driverError=error,
        )
        return
    rows = [
        ("tranche", made.version if made.commit is None else f"{made.version} (commit {made.commit})"),
        ("simulator", made.simulator_version),
        ("python", made.python_version),
        ("driver", driver or error),
        ("nvml", nvml),
    ]
    print_table(("SOFTWARE", "VERSION"), rows)
