"""The cluster and namespace of a command, asked with the person's own rights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tranche.cli.extras import extra_missing
from tranche.cli.kubeconfig_option import kubeconfig_option
from tranche.core.errors import KubernetesForbidden

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection

Result = TypeVar("Result")

_namespace_option = click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace. Default: that of the kubeconfig."
)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--namespace` and `--kubeconfig` to a command."""
    return _namespace_option(kubeconfig_option(function))


def asked_as_person(
    kubeconfig: str | None, namespace: str | None, ask: Callable[[ApiConnection, str], Awaitable[Result]]
) -> Result:
    """What `ask` finds out over a connection to the person's API server, and the chosen namespace.

    Raises:
        UsageError: what speaks to an API server is not installed.
        KubeconfigInvalid: no API server is known.
        KubernetesForbidden: the person may not; and whatever else `ask` raises.
    """
    try:
        from tranche.kubernetes.api.connection import ApiConnection
        from tranche.kubernetes.support.caller import caller_api_server
    except ModuleNotFoundError as error:
        raise extra_missing("a command for a cluster", "kubernetes", error) from error

    server = caller_api_server(kubeconfig, os.environ, Path.home())

    async def asked() -> Result:
        connection = ApiConnection(server)
        try:
            return await ask(connection, namespace or server.namespace)
        finally:
            await connection.close()

    try:
        return asyncio.run(asked())
    except KubernetesForbidden as error:
        raise KubernetesForbidden(
            error.message,
            hint="your account may not do this: name one of your namespaces with -n, or ask the cluster's administrator",
        ) from error
