"""`tranche completion`: the script with which a shell completes Tranche's command lines."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from tranche.cli.runtime import TrancheCommand

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=TrancheCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, /, shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    The script completes commands, options, ids, layouts, profiles, boards and machines.

    \b
    $ tranche completion bash > ~/.local/share/bash-completion/completions/tranche
    $ tranche completion zsh > "${fpath[1]}/_tranche"
    $ tranche completion fish > ~/.config/fish/completions/tranche.fish
    """
    root = context.find_root().command
    click.echo(script(root, shell), nl=False)


def script(root: click.Command, shell: str) -> str:
    """The script; the same on every machine, whichever shells are there."""
    found = get_completion_class(shell)
    assert found is not None, shell
    # Not the class's own source(), which for bash runs a bash and warns about its version.
    return ShellComplete.source(found(root, {}, "tranche", "_TRANCHE_COMPLETE")).strip() + "\n"
