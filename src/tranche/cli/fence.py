"""`tranche policy fence`: whether users open GPUs only in shares."""

from __future__ import annotations

from typing import Any

import click

from tranche.cli.options import quota_key
from tranche.cli.output import print_json, print_table, show
from tranche.cli.runtime import Settings, TrancheCommand, look_at, open_host, output_option
from tranche.core.allocation import Allocation
from tranche.core.errors import ServiceUnavailable, UsageError
from tranche.core.keeper import ProcessKeeper
from tranche.documents.describe import ranges
from tranche.node.fence import FencedProcess, FenceReport, put_up, service_runs, survey, take_down
from tranche.node.host import Host
from tranche.node.store.register import user_name


@click.command("fence", cls=TrancheCommand)
@click.option("--on", is_flag=True, help="Turn the fence on.")
@click.option("--off", is_flag=True, help="Turn the fence off.")
@click.option(
    "--exempt",
    metavar="USER",
    multiple=True,
    help="With --on: user who can still open GPUs outside shares, by name or uid; repeatable. Root always can.",
)
@output_option()
@click.pass_obj
def fence(settings: Settings, /, on: bool, off: bool, exempt: tuple[str, ...], output: str) -> None:
    """Let users open only the GPUs in their shares.

    With the fence, the kernel lets commands started with `tranche run` open only the GPUs and slices in their shares.
    Programs that a user starts outside a share, such as in a login session or a cron job, cannot open any GPU. Programs
    that already have a GPU open can continue to use it. If some shares are older than the fence, all users' sessions
    can still open GPUs until the last of these shares ends.

    Without --on or --off, the command changes nothing. It shows the state of the fence, the shares older than the
    fence, and the programs using a GPU outside a share.

    The fence needs the service, cgroup version 2, and sessions managed by systemd. The service restores the fence after
    a reboot.

    \b
    $ tranche policy fence
    $ tranche policy fence --on --exempt ann
    $ tranche policy fence --off
    """
    if on and off:
        raise UsageError("--on and --off cannot be combined", hint="give one of them")
    if exempt and not on:
        raise UsageError("--exempt requires --on", hint="for example: tranche policy fence --on --exempt ann")
    uids = frozenset(int(quota_key("user", each)) for each in exempt)
    with open_host(settings) as host:
        node = look_at(host).node
        if on:
            refuse_without_service(host)
            put_up(host, uids)
        elif off:
            take_down(host)
        report = survey(host, node)
    if output == "json":
        print_json("Fence", **fence_document(report))
    else:
        _print(report)


def refuse_without_service(host: Host) -> None:
    """ServiceUnavailable if no service runs: users would get no GPUs, and nothing would restore the fence after a reboot."""
    if not service_runs(host.places):
        raise ServiceUnavailable(
            "the fence needs the service, which is not running", hint="run: sudo tranche serve install"
        )


def fence_document(report: FenceReport) -> dict[str, Any]:
    """The fence as data."""
    return {
        "on": report.exempt is not None,
        "exemptUids": sorted(report.exempt or ()),
        "sessions": [{"group": each.path, "opensGpus": not each.rule} for each in report.sessions],
        "appliesFromElsewhere": report.others,
        "sharesBefore": [each.id for each in report.unfenced],
        "programsInSessions": [_use(each) for each in report.inside],
        "programsBeyond": [_use(each) for each in report.beyond],
    }


def _use(each: FencedProcess) -> dict[str, Any]:
    return {
        "pid": each.process.pid,
        "name": each.process.name,
        "uid": each.uid,
        "gpu": each.gpu.index,
        "group": each.group,
    }


def _print(report: FenceReport) -> None:
    exempt = ", ".join(user_name(uid) for uid in sorted(report.exempt or ()) if uid)
    if report.exempt is None:
        show("The fence is off.")
    else:
        show(f"The fence is on{f', and exempts {exempt}' if exempt else ''}.")
    open_ = [each.path for each in report.sessions if not each.rule]
    if not report.sessions:
        show(
            "There are no control groups for login sessions, because systemd is not running. "
            "Programs outside shares can open all GPUs."
        )
    elif not open_:
        show("Sessions cannot open GPUs.")
    else:
        show(f"Programs in {', '.join(open_)} can open all GPUs.")
    if changing := [each.path for each in report.sessions if each.rule and each.rule != report.wanted]:
        show(f"The exemptions in {', '.join(changing)} will change within seconds.")
    if report.others:
        show(
            "The fence of another state folder also applies to these groups. Take it down there, or restart the machine."
        )
    if report.unfenced:
        show("\nThese shares began without the fence. Sessions can open GPUs until the last of them ends:")
        print_table(
            ("SHARE", "USER", "COMMAND"),
            [(each.id, user_name(_owner(each)), each.command) for each in report.unfenced],
        )
    _print_uses(
        "With the fence, these programs outside shares keep their open GPUs, but cannot open GPUs again:",
        report.inside,
    )
    _print_uses("The fence does not reach these programs outside shares:", report.beyond)


def _owner(allocation: Allocation) -> int:
    return allocation.keeper.uid if isinstance(allocation.keeper, ProcessKeeper) else -1


def _print_uses(title: str, uses: tuple[FencedProcess, ...]) -> None:
    if uses:
        show(f"\n{title}")
        print_table(
            ("GPU", "USER", "PROGRAM", "CONTROL GROUP"),
            [(ranges([each.gpu.index]), user_name(each.uid), str(each.process), each.group) for each in uses],
        )
