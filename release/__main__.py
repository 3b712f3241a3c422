"""`python -m release`: check, image, dist, dashboards, recording, site."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from release.checks import CHECKS
from release.errors import ReleaseError
from release.image import deliver, make_image
from tranche_simulator.errors import SimulatorError


@click.group()
def command() -> None:
    """Make what is delivered, and check what is deployed."""


@command.command()
@click.argument("names", nargs=-1, metavar="[CHECK]...")
def check(names: tuple[str, ...]) -> None:
    """Check everything under deploy/, or the named parts of it; what is wrong is a line each, and exit code 1."""
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        raise click.UsageError(f"there is no check {unknown[0]}; there are: {', '.join(CHECKS)}")
    wrong = [f"{name}: {problem}" for name in names or CHECKS for problem in CHECKS[name]()]
    for line in wrong:
        click.echo(line)
    if wrong:
        sys.exit(1)


@command.command()
def image() -> None:
    """Build the agent's image, without a registry if there is none; where it lies, its digest and its size on stdout."""
    made = make_image(_say)
    archive, materials = deliver(made)
    _say(f"what is inside: {materials}")
    if made.base.startswith("localhost/"):
        _say(f"built on {made.base}, a stand-in for tests; publish what `docker build .` makes")
    click.echo(f"{archive} {made.digest} {made.size / 1e6:.1f} MB")


@command.command()
@click.option("--to", "target", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
def dist(target: Path) -> None:
    """Make the packages: wheels, the source archive, the self-contained archive, bill of materials and checksums."""
    from release.dist import make_dist  # what a check does not need is not imported for it

    make_dist(target, _say)


@command.command()
def dashboards() -> None:
    """Write the dashboards of deploy/monitoring from release/dashboards.py."""
    from release.dashboards import FOLDER, dashboard_files

    for name, text in dashboard_files().items():
        (FOLDER / name).write_text(text)


@command.command()
def recording() -> None:
    """Run the session of the README's terminal on a simulated machine, and draw it."""
    from release.recording import write_recording  # what a check does not need is not imported for it

    write_recording()


@command.command()
@click.option("--to", "target", type=click.Path(path_type=Path), default=Path("build/site"), show_default=True)
def site(target: Path) -> None:
    """Make the site of the documents; a dead link, or a page outside the navigation, is a line each, and exit code 1."""
    from release.site import make_site  # what a check does not need is not imported for it

    if wrong := make_site(target, _say):
        click.echo("\n".join(wrong))
        sys.exit(1)


def _say(line: str) -> None:
    click.echo(line, err=True)


def main() -> None:
    """Run a command; a failure is a message and exit code 1."""
    try:
        command(standalone_mode=True)
    except (ReleaseError, SimulatorError) as error:
        click.echo(f"error: {error}" if not error.hint else f"error: {error}\n  {error.hint}", err=True)
        sys.exit(1)


main()
