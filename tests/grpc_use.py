"""gRPC is used only in processes that end with their test: it does not survive a fork, and a later test's child would hang."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_ENTRANCES = ("server", "insecure_channel")
_process = os.getpid()
_kept_out: set[str] = set()


def keep_grpc_out_of_this_process() -> None:
    """From now on, what opens a server or a channel in this process fails; its children may. To be said again after imports."""
    grpc = sys.modules.get("grpc.aio")
    for name in _ENTRANCES if grpc else ():
        if name not in _kept_out:
            setattr(grpc, name, _only_in_children(getattr(grpc, name)))
            _kept_out.add(name)


def _only_in_children(opening: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*arguments: Any, **options: Any) -> Any:
        assert os.getpid() != _process, "gRPC does not survive the forks of later tests: mark this one as isolated"
        return opening(*arguments, **options)

    return checked
