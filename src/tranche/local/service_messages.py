"""What clients ask of the service, from their messages. What the service does not know, it refuses."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tranche.core.errors import UsageError
from tranche.core.printable import one_line
from tranche.core.request import Request, parse_request, parse_time_limit
from tranche.node.locks.deciding import WaitLimit
from tranche.node.state.connection import LONGEST_COMMAND, VERSION

_LONGEST_OPTION = 256
_LONGEST_WAIT_SECONDS = 1e9
OPTIONS = frozenset(inspect.signature(parse_request).parameters)
"""The options of a request, as `tranche run` has them with underscores."""


def method_of(message: Mapping[str, Any]) -> str:
    """What the client wants; UsageError for what this version does not know."""
    if type(message.get("version")) is not int or message["version"] != VERSION:
        raise UsageError(
            f"the service uses version {VERSION} of the protocol, but this command uses version {message.get('version')!r}",
            hint="use the version of Tranche that the service runs",
        )
    method = str(message.get("method"))[:_LONGEST_OPTION]
    if method not in ("run", "extend", "ledger", "node"):
        raise UsageError(f"the service has no method {method!r}", hint="its methods are run, extend, ledger and node")
    if method in ("ledger", "node") and (
        unknown := sorted(map(str, set(message) - {"version", "method", "parameters"}))
    ):
        raise UsageError(f"the request has unknown fields: {one_line(', '.join(unknown))}")
    return method


def parse_extension(message: Mapping[str, Any]) -> tuple[str, int]:
    """The allocation and the seconds that the message names; UsageError for anything else."""
    match message:
        case {"parameters": {"allocation": str(allocation_id), "time": str(text), **more}, **rest} if (
            not more and set(rest) == {"version", "method"} and len(allocation_id) + len(text) <= _LONGEST_OPTION
        ):
            return allocation_id, parse_time_limit(text)
    raise UsageError("the request lacks a field, or a field has the wrong type")


def parse_run(message: Mapping[str, Any]) -> tuple[Request, str, WaitLimit, bool]:
    """The request in the message, its command, its patience, and whether it is for containers.

    UsageError for what this version does not understand.
    """
    match message:
        case {
            "parameters": {
                "request": {**options},
                "command": str(command),
                "wait": bool(wait),
                "timeout": None | int() | float() as timeout,
                **more,
            },
            **rest,
        } if not isinstance(timeout, bool) and all(
            isinstance(each, str) and len(each) <= _LONGEST_OPTION for each in options.values()
        ):
            if cdi := more.get("cdi") is True:
                del more["cdi"]
            unknown = sorted(map(str, {*more, *rest, *(set(options) - OPTIONS)} - {"version", "method"}))
            if unknown:
                raise UsageError(f"the request has unknown fields: {one_line(', '.join(unknown))}")
            seconds = None if timeout is None else float(timeout)
            if seconds is not None and not 0 <= seconds < _LONGEST_WAIT_SECONDS:
                raise UsageError(f"the timeout {timeout} s is out of range")
            named: Mapping[str, Any] = {str(name): text for name, text in options.items()}
            return parse_request(**named), command[:LONGEST_COMMAND], WaitLimit(wait=wait, seconds=seconds), cdi
    raise UsageError("the request lacks a field, or a field has the wrong type")
