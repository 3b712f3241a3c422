"""`tranche metrics`: what can be measured of this machine, as a program that collects metrics reads it."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from tranche.cli.extras import extra_missing
from tranche.cli.looking import look_at
from tranche.cli.runtime import open_host
from tranche.cli.settings import Settings, TrancheCommand
from tranche.core.errors import UsageError
from tranche.node.files import write_text


@click.command(cls=TrancheCommand)
@click.option(
    "--textfile",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a file for node exporter's textfile collector instead; it is replaced at once, never seen half written.",
)
@click.option(
    "--names",
    type=click.Choice(["tranche", "dcgm", "both"]),
    default="tranche",
    show_default=True,
    help="Whose names: Tranche's, those of dcgm-exporter, or both.",
)
@click.pass_obj
def command(settings: Settings, /, textfile: Path | None, names: str) -> None:
    """Print GPUs, slices, holders, queue and changes as metrics, in OpenMetrics.

    What cannot be measured has no value. The agent of a Kubernetes node serves the same, and more, under /metrics.
    """
    try:
        from tranche.metrics import exposition
    except ModuleNotFoundError as error:
        raise extra_missing("'tranche metrics'", "metrics", error) from error
    from tranche.metrics.machine import facts_of_machine
    from tranche.metrics.names import MetricNames, named_samples

    if textfile is not None and not textfile.parent.is_dir():
        raise UsageError(
            f"cannot write {textfile}: there is no folder {textfile.parent}",
            hint="name the folder of node exporter's --collector.textfile.directory",
        )
    with open_host(settings, reading=True) as host:
        facts = facts_of_machine(host, look_at(host))
    families, samples = named_samples(facts, MetricNames(names), platform.node())
    if textfile is None:
        click.echo(exposition.openmetrics_text(families, samples), nl=False)
    else:
        write_text(str(textfile), exposition.textfile_text(families, samples))
