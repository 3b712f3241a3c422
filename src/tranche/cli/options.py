"""Options that several commands take: spans of time, users, and the cluster, which is asked with the caller's own rights."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tranche.core.errors import KubernetesForbidden, UsageError
from tranche.core.quantity import parse_duration
from tranche.core.user_quota import GROUP

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection

Result = TypeVar("Result")
_UID = re.compile(r"0*\d{1,10}", re.ASCII)

TIMEOUT_HELP = "Stop waiting after TIME, such as 90 (seconds), 30s or 1h30m. Default: no limit."
"""The same words for every command that waits."""


class DurationType(click.ParamType[float]):
    """Seconds, written as tranche.core.quantity reads them: `90`, `30s`, `10m`, `1h30m`; at least `least` of them."""

    name = "duration"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds; UsageError, which names the option, if the text is no span of time or too short a one."""
        name = "" if param is None else f"{max(param.opts, key=len)}: "
        try:
            seconds = value if isinstance(value, float) else parse_duration(str(value))
        except UsageError as error:
            raise UsageError(f"{name}{error.message}", hint=error.hint) from error
        if seconds < self._least:
            raise UsageError(f"{name}{value} is less than {self._least:g}s")
        return seconds


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*options: Decorator) -> Decorator:
    """Several options of a command as one decorator, in the order of its help."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


kubeconfig_option = click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod's service account.",
)


target_options = together(
    click.option("-n", "--namespace", metavar="NAME", help="Namespace. Default: the kubeconfig's namespace."),
    kubeconfig_option,
)


def refuse_kubeconfig_alone(kubeconfig: str | None, cluster: bool) -> None:
    """UsageError for --kubeconfig at a command that asks a cluster only with --cluster."""
    if kubeconfig is not None and not cluster:
        raise UsageError("--kubeconfig requires --cluster", hint="add --cluster")


def asked_of_cluster(
    kubeconfig: str | None, ask: Callable[[ApiConnection, str], Awaitable[Result]], what: str = "--cluster"
) -> Result:
    """What `ask` finds out over a connection to the caller's API server, given the kubeconfig's namespace.

    Raises:
        UsageError: what speaks to an API server is not installed; `what` needs it.
        KubeconfigInvalid: no API server is known.
        KubernetesUnavailable, KubernetesForbidden: it does not answer, or refuses everything; and whatever else `ask` raises.
    """
    import asyncio  # slow to import, and a listing of this machine asks no cluster

    try:
        from tranche.kubernetes.api.connection import ApiConnection
        from tranche.kubernetes.api.kubeconfig import caller_api_server
    except ModuleNotFoundError as error:
        raise extra_missing(what, "kubernetes", error) from error

    server = caller_api_server(kubeconfig, os.environ, Path.home())

    async def asked() -> Result:
        async with aclosing(ApiConnection(server)) as connection:
            return await ask(connection, server.namespace)

    return asyncio.run(asked())


def asked_as_person(
    kubeconfig: str | None, namespace: str | None, ask: Callable[[ApiConnection, str], Awaitable[Result]]
) -> Result:
    """As `asked_of_cluster`, for the chosen namespace or the kubeconfig's, with what helps who may not."""
    try:
        return asked_of_cluster(kubeconfig, lambda api, own: ask(api, namespace or own), "a command for a cluster")
    except KubernetesForbidden as error:
        raise KubernetesForbidden(
            error.message,
            hint="your account has no permission for this: give your namespace with -n, or ask the cluster's administrator",
        ) from error


def extra_missing(what: str, extra: str, error: ModuleNotFoundError) -> UsageError:
    """`what` needs a package of that extra. The hint names a file: no name in a public index is Tranche's."""
    import platform
    from importlib.metadata import version

    return UsageError(
        f"{what} needs the Python package '{error.name}', which is not installed",
        hint="install the wheel with the extra: pip install "
        f"'./tranche_gpu-{version('tranche-gpu')}-py3-none-manylinux_2_17_{platform.machine()}.whl[{extra}]'",
    )


def named_users(users: tuple[str, ...], groups: tuple[str, ...], *, check: bool) -> dict[str, str]:
    """The keys in quotas and the names of users and groups; UsageError for one that the machine does not know.

    Without the `check`, a group may have been deleted.
    """
    from tranche.node.store.register import user_name  # most commands that import this module open no ledger

    keys = (quota_key("group", each) if check else f"{GROUP}{each}" for each in groups)
    uids = (quota_key("user", each) for each in users)
    return {**{uid: user_name(int(uid)) for uid in uids}, **{key: key for key in keys}}


def quota_key(kind: str, name: str) -> str:
    """The key in quotas of the `user` or the `group` of that name; UsageError if the machine has none. A uid is a name too."""
    if kind == "group":
        try:
            return f"{GROUP}{grp.getgrnam(name).gr_name}"
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"this machine has no group '{name}'", hint="list a user's groups with: id USER"
            ) from error
    if _UID.fullmatch(name) and int(name) < 2**31:
        return str(int(name))
    try:
        return str(pwd.getpwnam(name).pw_uid)
    except (KeyError, ValueError) as error:
        raise UsageError(f"this machine has no user '{name}'", hint="give a name, or a uid below 2^31") from error
