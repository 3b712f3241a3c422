"""`python -m cluster`: up, down, status, values, run, end, prepare."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import click
import yaml
from release.errors import ReleaseError
from release.helm import helm
from release.image import made_image, make_image

from cluster import control_plane
from cluster import node as node_module
from cluster.binaries import ensure_older
from cluster.chart_values import give_image, simulated_machines
from cluster.cluster import Cluster, owned_by, prepare_machine, remove_cluster
from cluster.host import cluster_directories
from cluster.record import load_record
from tranche.core.errors import TrancheError

_name_option = click.option("--name", default="dev", show_default=True, help="Which cluster.")


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.group()
def command() -> None:
    """A real Kubernetes cluster on this machine, with simulated GPUs."""


@command.command()
@_name_option
@click.argument("nodes", nargs=-1, metavar="[NAME=MACHINE]...")
@click.option(
    "--time-scale",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Factor for how long the simulated driver's operations take.",
)
@click.option(
    "--owner",
    type=click.IntRange(min=1),
    metavar="PID",
    envvar="TRANCHE_CLUSTER_OWNER",
    help="The process that a new cluster must not outlive: tests remove what is left of it afterwards.",
)
@click.option("--older", is_flag=True, help="Run Kubernetes 1.33, which is built first: five minutes, once.")
def up(name: str, nodes: tuple[str, ...], time_scale: float, owner: int | None, older: bool) -> None:
    """Bring a cluster up, or what is down of one that exists. Prints the line that lets a shell find it.

    A node without a machine (`NAME=`) has no GPUs.
    """
    began = time.monotonic()
    wanted = dict(_node(text) for text in nodes or ("p4d=p4d.24xlarge",))
    if any(folder.name == name for folder in cluster_directories()):
        cluster = Cluster.open(name)
        cluster.start(_say)
        for node, machine in wanted.items() if nodes else ():
            if all(node != existing.name for existing in cluster.nodes):
                cluster.add_node(node, machine)
                _say(f"node {node} is Ready")
    else:
        process = owned_by(owner) if owner else None
        programs = ensure_older(_say) if older else None
        cluster = Cluster.create(name, wanted, time_scale=time_scale, owner=process, programs=programs, say=_say)
    _say(give_image(cluster.nodes, made_image()))
    _say(f"cluster {name} is up after {time.monotonic() - began:.0f} s; to use it in a shell, run:")
    click.echo(_shell_line(cluster))


@command.command()
@_name_option
@click.option("--all", "every", is_flag=True, help="Every cluster of this machine.")
def down(name: str, every: bool) -> None:
    """Remove a cluster and put the machine back as it was."""
    for chosen in [folder.name for folder in cluster_directories()] if every else [name]:
        if remove_cluster(chosen):
            _say(f"removed cluster {chosen}")
        else:
            _say(f"there is no cluster {chosen}")


@command.command()
def status() -> None:
    """Say which clusters there are, and which of their parts run."""
    for folder in cluster_directories():
        if load_record(folder) is None:
            click.echo(f"{folder.name}: half made or half removed; remove it with `python -m cluster down`")
            continue
        cluster = Cluster.open(folder.name)
        click.echo(f"{folder.name}: {_shell_line(cluster)}")
        plane = cluster.control_plane
        for component in control_plane.COMPONENTS:
            click.echo(f"  {component}: {_state(plane.unit(component).pid)}")
        for node in cluster.nodes:
            parts = ", ".join(f"{name} {_state(node.unit(name).pid)}" for name in node_module.COMPONENTS)
            click.echo(f"  node {node.name} ({node.record.machine or 'no GPUs'}): {parts}")


@command.command()
@_name_option
def values(name: str) -> None:
    """Print the values with which the agent's chart finds the simulated machines: `helm install ... --values=FILE`."""
    click.echo(yaml.safe_dump(simulated_machines(Cluster.open(name).folder)), nl=False)


@command.command(context_settings={"ignore_unknown_options": True})
@_name_option
@click.option("--background", metavar="WORD", help="Let it run under this name until the node or the cluster ends.")
@click.argument("node")
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...")
def run(name: str, background: str | None, node: str, words: tuple[str, ...]) -> None:
    """Run a command inside a node: with its simulated GPUs, its kubelet in the usual place, and the cluster's KUBECONFIG."""
    chosen = Cluster.open(name).node(node)
    if background:
        unit = chosen.start_program(background, words)
        _say(f"{background} runs as {unit.pid} on {node}; its output goes to {unit.log}")
        return
    command_line = chosen.command(words)
    os.execvpe(command_line[0], command_line, chosen.environment())


@command.command()
@_name_option
@click.argument("node")
@click.argument("word")
def end(name: str, node: str, word: str) -> None:
    """End a command that runs in the background of a node, under the name WORD."""
    Cluster.open(name).node(node).unit(word).stop()


@command.command()
def prepare() -> None:
    """Install, download or build what a cluster and the agent on it need, once; print the programs' folders."""
    binaries = prepare_machine(_say)
    folders = {Path(path).parent for path in binaries.values()} | set(_helm_folders())
    for folder in sorted(folders):
        click.echo(folder)
    try:
        make_image(_say)
    except ReleaseError as error:
        _say(f"there is no image of the agent: {error}")


def _node(text: str) -> tuple[str, str]:
    name, equals, machine = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is no node: write NAME=MACHINE, or NAME= for one without GPUs")
    return name, machine


def _shell_line(cluster: Cluster) -> str:
    """What a shell needs to find the cluster, its kubectl, and Helm."""
    folders = [Path(cluster.binaries["kubectl"]).parent, *_helm_folders()]
    path = ":".join(shlex.quote(str(folder)) for folder in folders)
    return f'export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))} PATH={path}:"$PATH"'


def _helm_folders() -> list[Path]:
    """Where Helm is, which is built now unless it is there; nowhere, and a line that says so, where it cannot be had."""
    try:
        return [helm().parent]
    except ReleaseError as error:
        _say(f"there is no Helm for the agent's chart: {error}")
        return []


def _state(pid: int | None) -> str:
    return "down" if pid is None else f"runs as {pid}"


def main() -> None:
    """Run a command; a mistake or a failure is a message and exit code 1."""
    try:
        command(standalone_mode=True)
    except (ReleaseError, TrancheError) as error:
        _say(f"error: {error}" if not error.hint else f"error: {error.message}\n  {error.hint}")
        sys.exit(1)


main()
