"""`tranche metrics`: what can be measured of this machine, as a program that collects metrics reads it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tranche.cli.options import extra_missing
from tranche.cli.runtime import DriverReader, Settings, TrancheCommand, look_at, open_host
from tranche.cli.service_options import metric_names_option
from tranche.core.errors import TrancheError, UsageError
from tranche.node.files.files import write_text

if TYPE_CHECKING:
    from tranche.metrics.facts import NodeFacts


_OPTIONS = [
    click.Option(
        ["--textfile"],
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write the metrics atomically to FILE, for node exporter's textfile collector. Default: stdout.",
    ),
    metric_names_option("--names"),
]


@click.command(cls=TrancheCommand, params=_OPTIONS)
@click.pass_obj
def command(settings: Settings, /, textfile: Path | None, names: str) -> None:
    """Print this machine's metrics for Prometheus.

    The output is in the OpenMetrics format. It covers GPUs, slices, holders, the queue and changes. A metric that
    cannot be measured has no value. If the command cannot read the machine, it removes all values from the --textfile
    file. On a Kubernetes node, the agent serves these metrics and more at /metrics.
    """
    try:
        from tranche.metrics.exposition import exposed
    except ModuleNotFoundError as error:
        raise extra_missing("'tranche metrics'", "metrics", error) from error
    from tranche.metrics.machine import facts_of_machine, facts_without_machine
    from tranche.metrics.samples import MetricNameSet, named_samples

    if textfile is not None and not textfile.parent.is_dir():
        raise UsageError(
            f"cannot write {textfile}: folder {textfile.parent} does not exist",
            hint="choose a file in node exporter's --collector.textfile.directory",
        )

    def look() -> NodeFacts:
        with open_host(settings, reading=True) as host:
            return facts_of_machine(host, look_at(host))

    def text(facts: NodeFacts) -> str:
        named = named_samples(facts, MetricNameSet(names), platform.node())
        return exposed(*named, in_openmetrics=textfile is None)[0].decode()

    try:
        facts = DriverReader().to(look)
    except TrancheError:
        if textfile is not None:
            # What stands there would be collected for ever, as if it had been measured now.
            write_text(str(textfile), text(facts_without_machine()))
        raise
    if textfile is None:
        click.echo(text(facts), nl=False)
    else:
        write_text(str(textfile), text(facts))
