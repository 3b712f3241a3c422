"""The request that a claim was made from, kept in the claim as the driver's configuration, which the scheduler does not read.

From it the node's agent knows the weakest isolation that the request accepts, and `tranche ps` shows the request as written.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tranche.core.errors import UsageError
from tranche.core.request import Request, parse_request
from tranche.kubernetes.claims.vocabulary import DRIVER

API_VERSION = f"{DRIVER}/v1"
KIND = "ShareRequest"


def share_request(request: Request) -> dict[str, Any]:
    """The parameters that hold a request."""
    return {"apiVersion": API_VERSION, "kind": KIND, "request": str(request)}


def read_share_request(parameters: Mapping[str, Any]) -> Request:
    """The request in a claim's parameters; UsageError when there is none, or another version wrote it."""
    kind = (parameters.get("apiVersion"), parameters.get("kind"))
    if kind != (API_VERSION, KIND):
        raise UsageError(
            f"the claim's parameters are {kind[0]} {kind[1]}; expected {API_VERSION} {KIND}",
            hint="create the claim with tranche submit, or remove its config",
        )
    text = parameters.get("request")
    if not isinstance(text, str):
        raise UsageError("the claim's parameters contain no request", hint="write it as request: --gpu-memory 4Gi")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"'{text}' is not a valid request: {error}") from error
    options = {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=False)
    }
    known = all(name.startswith("--") for name in words[::2]) and set(options) <= _OPTIONS
    if not known or 2 * len(options) != len(words):
        raise UsageError(f"'{text}' is not a valid request", hint="use the options of tranche submit")
    return parse_request(**options)


_OPTIONS = frozenset(("gpus", "gpu", "gpu_memory", "mig_profile", "count", "compute", "isolation", "gpu_model"))
