"""gRPC services that the kubelet calls, by the messages of its protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

Method = tuple[Any, Any]
"""What answers, and the type of the message that it gets."""

_NONE: Mapping[str, Method] = {}


def service(name: str, methods: Mapping[str, Method], streams: Mapping[str, Method] = _NONE) -> Any:
    """The service for a server; `streams` answer with many messages."""
    handlers = {
        each: grpc.unary_unary_rpc_method_handler(method, asked.FromString, _serialized)
        for each, (method, asked) in methods.items()
    } | {
        each: grpc.unary_stream_rpc_method_handler(method, asked.FromString, _serialized)
        for each, (method, asked) in streams.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def _serialized(answer: Any) -> Any:
    return answer.SerializeToString()
