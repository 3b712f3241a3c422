"""`tranche uncordon`: give a GPU away again."""

from __future__ import annotations

import time

import click

from tranche.cli.looking import look_at
from tranche.cli.output import say
from tranche.cli.runtime import Settings, TrancheCommand, open_host, user_name
from tranche.core.sharing_policy import gpu_named
from tranche.local.queue import Queue
from tranche.node.policy_change import uncordon


@click.command(cls=TrancheCommand)
@click.argument("gpus", metavar="GPU...", nargs=-1, required=True)
@click.pass_obj
def command(settings: Settings, /, gpus: tuple[str, ...]) -> None:
    """Allocate cordoned GPUs to requests again.

    GPU is an index or a UUID.

    \b
    $ tranche uncordon 3
    """
    with open_host(settings) as host:
        node = look_at(host).node
        named = {gpu.uuid: gpu for gpu in (gpu_named(text, node) for text in gpus)}.values()
        open_again = [gpu for gpu in named if uncordon(host, gpu, user=user_name(), clock=time.time)]
        if open_again:
            Queue(host).ring_next()
    for gpu in named:
        say(f"{gpu.label} {'uncordoned' if gpu in open_again else 'was not cordoned'}")
