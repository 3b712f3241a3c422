"""`tranche policy apply` and `tranche policy export`: the whole policy as one file."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

import click

from tranche.cli.fence import refuse_without_service
from tranche.cli.options import quota_key
from tranche.cli.output import print_json, print_table, say, show, warn
from tranche.cli.runtime import Settings, TrancheCommand, look_at, open_host, output_option
from tranche.core.allocation import NodeView
from tranche.core.errors import PolicyInvalid, TrancheError
from tranche.core.machine_policy import MachinePolicy, PolicyChange, differences, parse_policy, policy_document
from tranche.core.sharing_policy import SharingPolicy
from tranche.local.queue import Queue
from tranche.local.wakeup_pipe import as_asked
from tranche.node.fence import put_up, take_down
from tranche.node.files.files import STANDARD_STREAM, read_document, told_of, write_text, yaml_text
from tranche.node.host import Host
from tranche.node.policy_change import change_policy, present_policy, user_name_of
from tranche.node.store import records, register
from tranche.node.store.register import user_name
from tranche.planning.decide.queue import outlooks
from tranche.planning.decide.quota import holders_beyond


@click.command("apply", cls=TrancheCommand)
@click.option("-f", "--file", metavar="FILE", required=True, help="Policy file, YAML or JSON; - for stdin.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@output_option()
@click.pass_obj
def apply(settings: Settings, /, file: str, dry_run: bool, output: str) -> None:
    """Set the policy from a file.

    Each section in the file replaces the corresponding part of the policy. Parts without a section remain unchanged.
    The sharing, timeslice and gpus keys form one section; the other sections are quotas, fair, idle, preemption and
    fence. `tranche policy export` writes the current policy in this format.

    The command lists the changes, the users and groups above their new quotas, and the waiting requests that can no
    longer start. Running commands continue. The command changes the fence first, then everything else in one step. If
    the command is killed in between, run it again.

    \b
    $ tranche policy apply -f policy.yaml --dry-run
    $ tranche policy apply -f policy.yaml
    """
    document = read_document(file, PolicyInvalid, unique_keys=True)
    with open_host(settings, reading=dry_run) as host:
        view = look_at(host)
        with host.ledger.read() as db:
            before = present_policy(db)
        with told_of(file):
            wanted = parse_policy(document, view.node, before, quota_key)
        after = wanted.over(before)
        if after.fence is not False and after.fence != before.fence:
            refuse_without_service(host)
        labels = {gpu.uuid: gpu.label for gpu in view.node}
        beyond, refused = _consequences(host, view, after)
        if not dry_run:
            if after.fence != before.fence:  # first: if the kernel refuses it, nothing has changed
                _change_fence(host, after.fence)
            fences = before.fence, after.fence
            found = zip(change_policy(host, wanted.over, labels), fences, strict=True)
            before, after = (each._replace(fence=fence) for each, fence in found)
            Queue(host).ring_all()
    changes = [*differences(before, after, lambda uuid: labels.get(uuid, f"GPU {uuid}"), user_name_of)]
    if output == "json":
        print_json(
            "PolicyChange",
            applied=not dry_run,
            changes=[each._asdict() for each in changes],
            beyondQuota=beyond,
            refused=[
                {"id": waiter.id, "uid": waiter.uid, "reason": error.reason, "message": error.message}
                for waiter, error in refused
            ],
        )
        return
    _print(changes, dry_run=dry_run)
    for words in beyond:
        warn(f"{words}; running commands continue")
    for waiter, error in refused:
        warn(f"{user_name(waiter.uid)}'s waiting request {waiter.id} can no longer start: {error.message}")


@click.command("export", cls=TrancheCommand)
@click.option("-f", "--file", metavar="FILE", default=STANDARD_STREAM, help="File to write. Default: stdout.")
@click.pass_obj
def export(settings: Settings, /, file: str) -> None:
    """Write the policy as a file for `tranche policy apply`.

    \b
    $ tranche policy export -f policy.yaml
    """
    with open_host(settings, reading=True) as host, host.ledger.read() as db:
        policy = present_policy(db)
    write_text(file, yaml_text(policy_document(policy, user_name_of)))


def _change_fence(host: Host, exempt: frozenset[int] | Literal[False] | None) -> None:
    if isinstance(exempt, frozenset):
        put_up(host, exempt)
    else:
        take_down(host)


def _consequences(
    host: Host, view: NodeView, after: MachinePolicy
) -> tuple[tuple[str, ...], list[tuple[records.Waiter, TrancheError]]]:
    """Who holds more than their quota under that policy, in words, and the waiters that it refuses."""
    now = time.time()
    with host.ledger.read() as db:
        limits = register.user_limits(db, view.allocations, now, after.user_quotas)
        queue = records.waiters(db)
    quotas, groups, recent = limits
    uses = (after.sharing or SharingPolicy()).on(view.node)
    then = replace(view, quotas=quotas, groups=groups, recent=recent, uses=uses)
    found = zip(queue, outlooks(then, as_asked(host.places, queue, now)), strict=True)
    refused = [(waiter, outlook) for waiter, outlook in found if isinstance(outlook, TrancheError)]
    return holders_beyond(then, user_name_of), refused


def _print(changes: list[PolicyChange], *, dry_run: bool) -> None:
    if not changes:
        say("the policy already matches the file")
        return
    print_table(("POLICY OF", "BEFORE", "AFTER"), changes)
    if dry_run:
        show("")
        show("Nothing has changed: this was a dry run.")
