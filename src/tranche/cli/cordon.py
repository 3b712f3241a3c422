"""`tranche cordon`: give nothing more of a GPU away."""

from __future__ import annotations

import time

import click

from tranche.cli.looking import look_at
from tranche.cli.output import say
from tranche.cli.runtime import Settings, TrancheCommand, open_host, user_name
from tranche.core.sharing_policy import gpu_named
from tranche.node.policy_change import cordon


@click.command(cls=TrancheCommand)
@click.argument("gpus", metavar="GPU...", nargs=-1, required=True)
@click.option("--reason", default="", metavar="TEXT", help="Reason to show to users who wait because of the cordon.")
@click.pass_obj
def command(settings: Settings, /, gpus: tuple[str, ...], reason: str) -> None:
    """Stop allocating GPUs to new requests.

    GPU is an index or a UUID. Running shares are not affected, and layouts can still be applied. The cordon survives reboots
    and ends with `tranche uncordon`. Users who wait because of it see who set it, and the reason.

    \b
    $ tranche cordon 3 --reason 'fan replacement tonight'
    $ tranche uncordon 3
    """
    with open_host(settings) as host:
        node = look_at(host).node
        named = {gpu.uuid: gpu for gpu in (gpu_named(text, node) for text in gpus)}.values()
        for gpu in named:
            cordon(host, gpu, user=user_name(), reason=reason, clock=time.time)
    say(f"{', '.join(gpu.label for gpu in named)} cordoned")
