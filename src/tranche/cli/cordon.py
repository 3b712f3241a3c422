"""`tranche cordon` and `tranche uncordon`: give nothing more of a GPU away, and give it away again."""

from __future__ import annotations

import time
from collections.abc import Collection

import click

from tranche.cli.output import say
from tranche.cli.runtime import Settings, TrancheCommand, look_at, open_host, user_name
from tranche.core.sharing_policy import gpu_named
from tranche.core.state import GpuState
from tranche.node import policy_change
from tranche.node.host import Host


@click.command(cls=TrancheCommand)
@click.argument("gpus", metavar="GPU...", nargs=-1, required=True)
@click.option(
    "--reason", default="", metavar="TEXT", help="Reason to show to users who are waiting because of the cordon."
)
@click.pass_obj
def cordon(settings: Settings, /, gpus: tuple[str, ...], reason: str) -> None:
    """Keep new requests off the given GPUs.

    GPU is an index or a UUID. The cordon does not affect running shares or layouts. It survives reboots and ends with
    `tranche uncordon`. Users who are waiting because of the cordon see who set it and why.

    \b
    $ tranche cordon 3 --reason 'fan replacement tonight'
    $ tranche uncordon 3
    """
    with open_host(settings) as host:
        named = _named(host, gpus)
        for gpu in named:
            policy_change.cordon(host, gpu, user=user_name(), reason=reason, clock=time.time)
    say(f"{', '.join(gpu.label for gpu in named)} cordoned")


@click.command(cls=TrancheCommand)
@click.argument("gpus", metavar="GPU...", nargs=-1, required=True)
@click.pass_obj
def uncordon(settings: Settings, /, gpus: tuple[str, ...]) -> None:
    """Make cordoned GPUs available again.

    GPU is an index or a UUID.

    \b
    $ tranche uncordon 3
    """
    with open_host(settings) as host:
        named = _named(host, gpus)
        open_again = [gpu for gpu in named if policy_change.uncordon(host, gpu, user=user_name(), clock=time.time)]
        if open_again:
            from tranche.local.queue import Queue  # nobody waits for a cordon

            Queue(host).ring_next()
    for gpu in named:
        say(f"{gpu.label} {'uncordoned' if gpu in open_again else 'was not cordoned'}")


def _named(host: Host, gpus: tuple[str, ...]) -> Collection[GpuState]:
    node = look_at(host).node
    return {gpu.uuid: gpu for gpu in (gpu_named(text, node) for text in gpus)}.values()
