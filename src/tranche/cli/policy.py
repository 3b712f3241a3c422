"""`tranche policy`: how the administrator wants GPUs to be shared."""

from __future__ import annotations

import time

import click

from tranche.cli.looking import look_at
from tranche.cli.output import print_json, print_table, say
from tranche.cli.runtime import Settings, TrancheCommand, TrancheGroup, open_host, output_option
from tranche.core.errors import PolicyInvalid, UsageError
from tranche.core.sharing import GpuPolicy, Timeslice, parse_timeslice
from tranche.core.sharing_policy import SharingPolicy, gpu_named, parse_policy, parse_word
from tranche.core.state import NodeState
from tranche.documents.policy import policy_documents, source_of
from tranche.node.files.files import read_document, told_of
from tranche.node.policy_change import change_policy
from tranche.node.store import records

_GPU_OPTION = click.option(
    "--gpu",
    "gpus",
    metavar="GPU",
    multiple=True,
    help="The GPU, by index or UUID; may be repeated. Default: all others.",
)


@click.group("policy", cls=TrancheGroup)
def command() -> None:
    """Say how GPUs may be shared. The word stands in the ledger, and every decision heeds it.

    auto: as each request needs it. mig: in slices alone, each for one holder. shared: in parts of the GPU as it is, never
    cut for a request. off: not at all. A whole GPU is given in any case, and whoever holds something keeps it.

    timeslice is for shares that take turns on a GPU that is not cut: how long each turn lasts. It is set with the first
    of them and put back after the last one.

    \b
    $ tranche policy set --gpu 3 sharing=mig
    $ tranche policy set sharing=off
    $ tranche policy set --gpu 3 timeslice=short
    $ tranche policy list
    """


@command.command("set", cls=TrancheCommand)
@click.argument("word", metavar="[sharing=WORD|timeslice=LENGTH]", default="")
@_GPU_OPTION
@click.option("-f", "--file", metavar="FILE", help="A file with the words of all GPUs, YAML or JSON; - is stdin.")
@click.pass_obj
def set_(settings: Settings, /, word: str, gpus: tuple[str, ...], file: str | None) -> None:
    """Set the word for some GPUs, or for all that have none of their own. LENGTH is default, short, medium or long.

    With a file, its words replace all that were said before. It is of kind SharingPolicy, with sharing for all GPUs that it
    does not name, and a list gpus of entries with gpu, an index or a UUID, and sharing.

    \b
    $ tranche policy set --gpu 0 --gpu 3 sharing=shared
    """
    if (file is None) is (not word) or (file is not None and gpus):
        raise UsageError(
            "give either a word or a file",
            hint="for example: tranche policy set --gpu 3 sharing=mig, or: -f policy.yaml",
        )
    if file is None and word.startswith("timeslice="):
        _set_timeslice(settings, gpus, parse_timeslice(word))
        return
    if file is None:
        _change(settings, gpus, parse_word(word))
        return
    document = read_document(file, PolicyInvalid)
    with open_host(settings) as host:
        node = look_at(host).node
        with told_of(file):
            policy = parse_policy(document, node)
        change_policy(host.ledger, lambda before: policy, node, clock=time.time)
    say(
        f"the policy has {len(policy.gpus)} GPUs"
        + ("" if policy.every is None else f", and sharing={policy.every} for all others")
    )


@command.command("unset", cls=TrancheCommand)
@_GPU_OPTION
@click.pass_obj
def unset(settings: Settings, /, gpus: tuple[str, ...]) -> None:
    """Take the words for some GPUs back, or those for all that have none of their own.

    \b
    $ tranche policy unset --gpu 3
    """
    _change(settings, gpus, None)
    _set_timeslice(settings, gpus, None)


@command.command("list", cls=TrancheCommand)
@output_option()
@click.pass_obj
def list_(settings: Settings, /, output: str) -> None:
    """List the word that counts for each GPU, and whose it is: the GPU's own, that for all, or the default.

    \b
    $ tranche policy list
    """
    with open_host(settings, reading=True) as host:
        node = look_at(host).node
        with host.ledger.read() as db:
            policy = records.sharing_policy(db)
    if output == "json":
        every = None if policy.every is None else str(policy.every)
        print_json("PolicyList", sharing=every, gpus=policy_documents(policy, node))
        return
    print_table(
        ("GPU", "MODEL", "SHARING", "SAID FOR", "TIMESLICE"),
        [
            (gpu.index, gpu.name, policy.use_of(gpu.uuid), source_of(policy, gpu.uuid), gpu.timeslice_wanted or "-")
            for gpu in node
        ],
    )


def _change(settings: Settings, gpus: tuple[str, ...], use: GpuPolicy | None) -> None:
    with open_host(settings) as host:
        node = look_at(host).node
        uuids = tuple(gpu_named(text, node).uuid for text in gpus)

        def change(before: SharingPolicy) -> SharingPolicy:
            return before.with_word(uuids, use)

        after = change_policy(host.ledger, change, node, clock=time.time)
    say(_said(after, node, uuids))


def _set_timeslice(settings: Settings, gpus: tuple[str, ...], length: Timeslice | None) -> None:
    with open_host(settings) as host:
        named = [gpu_named(text, look_at(host).node) for text in gpus]
        cut = next((gpu for gpu in named if gpu.mig_enabled and length is not None), None)
        if cut is not None:
            raise PolicyInvalid(
                f"{cut.label} is in MIG mode, and the driver keeps no time slice there",
                hint="a time slice is for shares of a GPU that is not cut: turn MIG mode off first",
            )
        host.timeslices.want([gpu.uuid for gpu in named], length)
    if length is not None:
        say(f"{', '.join(gpu.label for gpu in named) or 'all GPUs without a word of their own'}: timeslice={length}")


def _said(policy: SharingPolicy, node: NodeState, uuids: tuple[str, ...]) -> str:
    if not uuids:
        return f"all GPUs without a word of their own: sharing={policy.every or GpuPolicy.AUTO}"
    return ", ".join(f"{node.gpu(uuid).label}: sharing={policy.use_of(uuid)}" for uuid in uuids)
