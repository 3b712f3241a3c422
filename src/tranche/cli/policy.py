"""`tranche policy`: how the administrator wants GPUs to be shared, how much one user may hold, and who goes first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tranche.cli.fence import fence
from tranche.cli.options import named_users
from tranche.cli.output import print_json, print_table, say, show
from tranche.cli.policy_file import apply, export
from tranche.cli.runtime import Settings, TrancheCommand, TrancheGroup, look_at, open_host, output_option
from tranche.core.errors import PolicyInvalid, UsageError
from tranche.core.idle import IdlePolicy
from tranche.core.machine_policy import MachinePolicy, idle_seconds
from tranche.core.quantity import format_duration, memory_option
from tranche.core.sharing import EVERY_GPU, GpuPolicy, Timeslice, parse_timeslice
from tranche.core.sharing_policy import SharingPolicy, gpu_named, parse_word
from tranche.core.state import NodeState
from tranche.core.user_quota import EVERYONE, GROUP, UserQuota, is_fair, is_group, parse_quota, quota_of
from tranche.documents.describe import ranges
from tranche.local.queue import Queue
from tranche.node.policy_change import change_policy, user_name_of
from tranche.node.store import records
from tranche.node.store.register import user_name

_WEIGHT = re.compile(r"\d{1,4}", re.ASCII)
_FAIR = "requests from users with less GPU time are served first"
_PREEMPTIBLE = "preemptible commands are allowed"
_GPU_OPTION = click.option(
    "--gpu",
    "gpus",
    metavar="GPU",
    multiple=True,
    help="GPU, by index or UUID; repeatable. Default: all GPUs without their own policy.",
)


@click.group("policy", cls=TrancheGroup)
def command() -> None:
    """Set and list policies for sharing, quotas, queue order, idle shares, preemption, and the fence.

    A sharing policy applies to one GPU, or to all GPUs without their own policy. For the policies, see `tranche policy
    set --help`.

    \b
    $ tranche policy set --gpu 3 sharing=mig
    $ tranche policy set sharing=off
    $ tranche policy set --gpu 3 timeslice=short
    $ tranche policy quota --gpus 2 --shares 8
    $ tranche policy fair
    $ tranche policy idle --after 45m --end
    $ tranche policy preemption --on
    $ tranche policy fence --on
    $ tranche policy list
    $ tranche policy apply -f policy.yaml --dry-run
    """


@command.command("set", cls=TrancheCommand)
@click.argument("word", metavar="sharing=POLICY|timeslice=LENGTH")
@_GPU_OPTION
@click.pass_obj
def set_(settings: Settings, /, word: str, gpus: tuple[str, ...]) -> None:
    """Set the policy for GPUs.

    POLICY is auto, mig, shared or off. With auto, the default, Tranche shares a GPU in whichever way a request needs.
    With mig, it grants only slices, each to one holder. With shared, it grants only parts of the GPU and creates no
    slices. With off, it does not share the GPU. Every policy allows requests for whole GPUs. No policy affects existing
    shares.

    LENGTH is default, short, medium or long. It sets the length of a share's turn on a time-sliced GPU; slices do not
    support this. Tranche sets this length when the first share starts, and resets it after the last share ends.

    \b
    $ tranche policy set --gpu 0 --gpu 3 sharing=shared
    """
    if word.startswith("timeslice="):
        _set_timeslice(settings, gpus, parse_timeslice(word))
        return
    use = parse_word(word)
    with open_host(settings) as host:
        node = look_at(host).node
        uuids = [gpu_named(text, node).uuid for text in gpus]
        _, after = change_policy(host, lambda before: before.with_sharing(uuids, use), _labels(node))
    say(_said(after, node, uuids))


@command.command("unset", cls=TrancheCommand)
@_GPU_OPTION
@click.pass_obj
def unset(settings: Settings, /, gpus: tuple[str, ...]) -> None:
    """Remove the policies and time-slice lengths of GPUs.

    \b
    $ tranche policy unset --gpu 3
    """
    with open_host(settings) as host:
        node = look_at(host).node
        with host.ledger.read() as db:
            known = {*records.sharing_policy(db).gpus, *records.timeslices(db)} - {EVERY_GPU}
        uuids = [text if text in known else gpu_named(text, node).uuid for text in gpus]

        def change(before: MachinePolicy) -> MachinePolicy:
            return before.with_sharing(uuids, None).with_timeslice(uuids, None)

        _, after = change_policy(host, change, _labels(node))
    say(_said(after, node, uuids))


@command.command("list", cls=TrancheCommand)
@output_option()
@click.pass_obj
def list_(settings: Settings, /, output: str) -> None:
    """List the policy of each GPU, and the quotas and weights of users and groups.

    SET FOR shows where the policy was set: gpu, all, or nothing for the default. In a user's quota, a dash means that
    the limit for all users, if any, applies.

    \b
    $ tranche policy list
    """
    with open_host(settings, reading=True) as host:
        node = look_at(host).node
        with host.ledger.read() as db:
            policy, quotas, idle_ = records.sharing_policy(db), records.user_quotas(db), records.idle_policy(db)
            exempt, lengths, preemptible = records.fence(db), records.timeslices(db), records.preemption(db)
    if output == "json":
        every = None if policy.every is None else str(policy.every)
        print_json(
            "PolicyList",
            sharing=every,
            gpus=_documents(policy, lengths, node),
            quotas=_quota_documents(quotas),
            idle={"afterSeconds": idle_.after, "endsHolds": idle_.ends},
            preemption=preemptible,
            fence=None if exempt is None else {"exemptUids": sorted(exempt)},
        )
        return
    alike: dict[tuple[object, ...], list[int]] = {}
    for gpu in node:
        row = gpu.name, policy.use_of(gpu.uuid), _source(policy, gpu.uuid), gpu.timeslice_wanted or "-"
        alike.setdefault(row, []).append(gpu.index)
    rows = [(ranges(each), *row) for row, each in alike.items()]
    rows += [
        (uuid, "(gone)", policy.use_of(uuid), _source(policy, uuid), lengths.get(uuid, "-"))
        for uuid in _gone(policy, lengths, node)
    ]
    print_table(("GPU", "MODEL", "SHARING", "SET FOR", "TIMESLICE"), rows)
    if is_fair(quotas):
        show("")
        show(_FAIR)
    if idle_ != IdlePolicy():
        show("")
        show(str(idle_))
    if preemptible:
        show("")
        show(_PREEMPTIBLE)
    if exempt is not None:
        show("")
        show("the machine has a fence; to see what it covers, run: tranche policy fence")
    if set(quotas.values()) - {UserQuota(weight=1)} or set(quotas) - {EVERYONE}:
        show("")
        print_table(
            ("USER", "GPUS", "GPU MEMORY", "SHARES", "TIME", "GPU-HOURS", "WEIGHT"),
            [
                (
                    user_name_of(uid) or "(all)",
                    each.gpus or "-",
                    "-" if each.memory is None else memory_option(each.memory),
                    "-" if each.shares is None else each.shares,
                    "-" if each.time_limit is None else format_duration(each.time_limit),
                    "-" if each.gpu_hours is None else each.gpu_hours,
                    "-" if each.weight is None else each.weight,
                )
                for uid, each in quotas.items()
            ],
        )


@command.command("quota", cls=TrancheCommand)
@click.option(
    "--user",
    "users",
    metavar="USER",
    multiple=True,
    help="User, by name or uid; repeatable. Default: all users, except root.",
)
@click.option(
    "--group",
    "groups",
    metavar="GROUP",
    multiple=True,
    help="Group, with limits for all of its members together; repeatable.",
)
@click.option(
    "--gpus",
    metavar="N",
    help="Maximum number of GPUs held at once, such as 1.5. A slice counts as its fraction of a GPU.",
)
@click.option("--gpu-memory", metavar="SIZE", help="Maximum GPU memory held at once, such as 40G.")
@click.option(
    "--shares",
    metavar="N",
    help="Maximum number of shares held at once. A request for several GPUs gets several shares.",
)
@click.option(
    "--time",
    metavar="TIME",
    help="Maximum time limit for a command, such as 8h. Commands without --time get this limit.",
)
@click.option(
    "--gpu-hours", metavar="N", help="Maximum GPU-hours over seven UTC days: today and the previous six days."
)
@click.option(
    "--remove", is_flag=True, help="Remove the limits of the named users or groups. Default: the limits for all users."
)
@click.pass_obj
def quota(
    settings: Settings,
    /,
    users: tuple[str, ...],
    groups: tuple[str, ...],
    gpus: str | None,
    gpu_memory: str | None,
    shares: str | None,
    time: str | None,
    gpu_hours: str | None,
    remove: bool,
) -> None:
    """Limit how much a user or a group can hold.

    Limits that you do not specify remain unchanged. A user's own limit overrides the limit for all users. A group's
    limit applies to the combined usage of its members, in addition to their own limits. Quotas apply to commands on the
    machine, not to pods.

    A request that would exceed a quota waits. Later requests can overtake it, even those of the same user. A new quota
    does not affect existing shares. With a limit of 0 GPUs, shares or GPU-hours, Tranche refuses every request.

    \b
    $ tranche policy quota --gpus 2 --shares 8
    $ tranche policy quota --user ann --gpus 4
    $ tranche policy quota --group students --gpus 3 --gpu-hours 200
    """
    given = [each for each in (gpus, gpu_memory, shares, time, gpu_hours) if each is not None]
    if bool(given) is remove:
        what = "--remove cannot be combined with limits" if remove else "give at least one limit, or --remove"
        raise UsageError(what, hint="for example: tranche policy quota --gpus 2")
    if groups and time is not None:
        raise UsageError(
            "--time cannot be set for a group, because it applies to each command",
            hint="set it with --user, or for all users without --user",
        )
    named = named_users(users, groups, check=not remove) or {EVERYONE: ""}
    wanted = None if remove else parse_quota(gpus, gpu_memory, shares, time, gpu_hours)
    with open_host(settings) as host:
        _, after = change_policy(host, lambda before: before.with_limits(named, wanted))
        Queue(host).ring_all()
    quotas = after.user_quotas
    told: dict[str, list[str]] = {}
    for uid, name in named.items():
        now = quota_of(quotas, int(uid)) if uid.isdigit() else quotas.get(uid)
        words = "no quota" if now is None else str(now)
        if now is not None and wanted is None:
            words = f"the quota for all users, {now}" if uid.isdigit() else f"no limits, {now}"
        told.setdefault(words, []).append(name)
    for words, names in told.items():
        say(f"{', '.join(names) or 'all users, except root'}: {words}")


@command.command("fair", cls=TrancheCommand)
@click.option("--user", "users", metavar="USER", multiple=True, help="User, by name or uid; repeatable.")
@click.option("--group", "groups", metavar="GROUP", multiple=True, help="Group; repeatable.")
@click.option("--weight", metavar="N", help="Weight of the users or groups, from 1 to 9999. Default: 1.")
@click.option(
    "--off",
    is_flag=True,
    help="Restore the order of arrival and remove all weights; with --user or --group, remove only their weights.",
)
@click.pass_obj
def fair(settings: Settings, /, users: tuple[str, ...], groups: tuple[str, ...], weight: str | None, off: bool) -> None:
    """Serve users with the least GPU time first.

    The user with the least GPU time relative to their weight is served first. A slice counts as its fraction of a GPU,
    and past usage decays with a half-life of seven days. Running commands continue, and their GPU time so far counts as
    usage. Users with equal usage are served in order of arrival.

    A weighted group competes as one user, and its members share the group's GPU time. A user in several weighted groups
    belongs to the first one in alphabetical order.

    \b
    $ tranche policy fair
    $ tranche policy fair --user ann --weight 2
    $ tranche policy fair --group phd --group staff --weight 3
    $ tranche policy fair --off
    """
    if off and weight is not None:
        raise UsageError("--off cannot be combined with --weight", hint="for example: tranche policy fair --off")
    if not off and (weight is None) is not (not users and not groups):
        raise UsageError(
            "--weight must be used together with --user or --group",
            hint="for example: tranche policy fair --user ann --weight 2",
        )
    if weight is not None and (_WEIGHT.fullmatch(weight) is None or int(weight) == 0):
        raise UsageError(f"'{weight}' is not a whole number from 1 to 9999", hint="for example: --weight 2")
    named = named_users(users, groups, check=not off)
    with open_host(settings) as host:
        before, _ = change_policy(host, lambda before: before.with_weight(named, None if off else int(weight or 1)))
        Queue(host).ring_all()
    for name in named.values():
        say(f"{name}: {'no weight' if off else f'weight {weight}'}")
    if not named:
        say("requests are served in order of arrival" if off else _FAIR)
    elif not off and not is_fair(before.user_quotas):
        say(_FAIR)


@command.command("idle", cls=TrancheCommand)
@click.option(
    "--after",
    metavar="TIME",
    help="Time without work after which a share counts as idle, at least 10m. Default: 30m.",
)
@click.option("--end", is_flag=True, help="End idle holds, after a 5-minute warning.")
@click.option("--off", is_flag=True, help="Restore the default: shares are idle after 30m, and Tranche ends no holds.")
@click.pass_obj
def idle(settings: Settings, /, after: str | None, end: bool, off: bool) -> None:
    """Set when a share counts as idle, and whether Tranche ends idle holds.

    `tranche ps` shows idle shares, and `tranche explain` shows which of them block a request. With --end, Tranche ends
    an idle hold and its programs, as it does at a time limit. It never ends an idle command of `tranche run`.

    \b
    $ tranche policy idle --after 45m
    $ tranche policy idle --after 45m --end
    $ tranche policy idle --off
    """
    if off is (after is not None or end):
        what = "--off cannot be combined with other options" if off else "give --after, --end or --off"
        raise UsageError(what, hint="for example: tranche policy idle --after 45m")
    wanted = IdlePolicy(IdlePolicy().after if after is None else idle_seconds(after), end)
    with open_host(settings) as host:
        change_policy(host, lambda before: before._replace(idle=wanted))
    say(str(wanted))


@command.command("preemption", cls=TrancheCommand)
@click.option("--on", is_flag=True, help="Allow preemptible commands.")
@click.option(
    "--off", is_flag=True, help="Refuse preemptible commands. Running ones continue until they are preempted."
)
@click.pass_obj
def preemption(settings: Settings, /, on: bool, off: bool) -> None:
    """Allow commands to exceed their user's quota on GPUs that no other request needs.

    Users start such commands with tranche run --preemptible. They wait behind all other requests. Tranche ends them
    when another request needs their GPU, and starts them again later. They do not count towards quotas or towards usage
    in a fair queue. Time limits apply to them.

    \b
    $ tranche policy preemption --on
    """
    if on is off:
        raise UsageError("give --on or --off", hint="for example: tranche policy preemption --on")
    with open_host(settings) as host:
        change_policy(host, lambda before: before._replace(preemption=on))
    say(_PREEMPTIBLE if on else "preemptible commands are not allowed")


def _set_timeslice(settings: Settings, gpus: tuple[str, ...], length: Timeslice) -> None:
    with open_host(settings) as host:
        named = [gpu_named(text, look_at(host).node) for text in gpus]
        cut = next((gpu for gpu in named if gpu.mig_enabled), None)
        if cut is not None:
            raise PolicyInvalid(
                f"{cut.label} is in MIG mode, in which the driver does not support time slices",
                hint="time slices are for shares of a whole GPU: turn MIG mode off first",
            )
        change_policy(host, lambda before: before.with_timeslice([gpu.uuid for gpu in named], length))
    say(f"{', '.join(gpu.label for gpu in named) or 'all GPUs without their own policy'}: timeslice={length}")


def _labels(node: NodeState) -> Mapping[str, str]:
    return {gpu.uuid: gpu.label for gpu in node}


def _said(policy: MachinePolicy, node: NodeState, uuids: Sequence[str]) -> str:
    sharing, labels = policy.sharing or SharingPolicy(), _labels(node)
    if not uuids:
        return f"all GPUs without their own policy: sharing={sharing.every or GpuPolicy.AUTO}"
    return ", ".join(f"{labels.get(uuid, f'GPU {uuid}')}: sharing={sharing.use_of(uuid)}" for uuid in uuids)


def _gone(policy: SharingPolicy, lengths: Mapping[str, Timeslice], node: NodeState) -> list[str]:
    """The GPUs with a policy of their own that the machine does not show any more."""
    return sorted({*policy.gpus, *lengths} - {EVERY_GPU, *(gpu.uuid for gpu in node)})


def _documents(policy: SharingPolicy, lengths: Mapping[str, Timeslice], node: NodeState) -> list[dict[str, Any]]:
    """Each GPU with the policy in force, and where it was set; those that are gone come last, without an index."""
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "sharing": str(policy.use_of(gpu.uuid)),
            "saidFor": _source(policy, gpu.uuid),
            "timeslice": None if gpu.timeslice_wanted is None else str(gpu.timeslice_wanted),
        }
        for gpu in node
    ] + [
        {
            "index": None,
            "uuid": uuid,
            "sharing": str(policy.use_of(uuid)),
            "saidFor": _source(policy, uuid),
            "timeslice": None if uuid not in lengths else str(lengths[uuid]),
        }
        for uuid in _gone(policy, lengths, node)
    ]


def _quota_documents(quotas: Mapping[str, UserQuota]) -> list[dict[str, Any]]:
    """The limits by user or group; both are None for those without a quota of their own."""
    return [
        {
            "user": user_name(int(uid)) if uid.isdigit() else None,
            "group": uid.removeprefix(GROUP) if is_group(uid) else None,
            "gpuPercent": each.gpu_percent,
            "memoryBytes": each.memory,
            "shares": each.shares,
            "timeLimitSeconds": each.time_limit,
            "gpuHours": each.gpu_hours,
            "weight": each.weight,
        }
        for uid, each in quotas.items()
    ]


def _source(policy: SharingPolicy, gpu_uuid: str) -> str:
    """Where a GPU's policy was set: `gpu`, `all`, or `nothing`."""
    if gpu_uuid in policy.gpus:
        return "gpu"
    return "nothing" if policy.every is None else "all"


command.add_command(fence)
command.add_command(apply)
command.add_command(export)
