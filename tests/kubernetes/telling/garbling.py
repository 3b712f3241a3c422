"""Views in which something is not as any agent writes it, and leases that hold them."""

from __future__ import annotations

import base64
import copy
import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from tranche.core.allocation import NodeView
from tranche.core.state import NodeState
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.telling.told_view import ViewReport, told, told_to_lease
from tranche.planning.decide.recording import view_to_dict

_VIEW = "tranche.dev/view"
_RAW = "\0raw\0"

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -5, 7, 64, 65, 2**31, 2**53, 2**63, 2**200, 10**30, 10**400, -(10**400),
    0.5, -0.0, 1e300, -1e300, float("nan"), float("inf"), -float("inf"), "", "x", "<b>&\"'", "x" * 100_000, "\x00\x1b\u202e",
    "1e999999999", "1/0", "GPU-00000000-0000-4000-8000-000000000000", "another namespace", [], {}, [[]], [None], {"": None},
    ["x"] * 5_000, {"kind": "claim"}, {"kind": []}, [1, 2], {"start": 0, "size": 10**9}, {"start": -1, "size": 1},
)  # fmt: skip
"""Values of JSON, and what Python's reader takes for one."""


def at(data: Any, path: tuple[Any, ...]) -> Any:
    """What is there."""
    for key in path:
        data = data[key]
    return data


def with_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with that value in that place."""
    if not path:
        return value
    found = copy.deepcopy(data)
    spot = at(found, path[:-1])
    spot[path[-1]] = value
    return found


def without(data: Any, path: tuple[Any, ...]) -> Any:
    """The document without what is there."""
    found = copy.deepcopy(data)
    spot = at(found, path[:-1])
    del spot[path[-1]]
    return found


def lease_of(text: str, node: str = "n1") -> Lease:
    """The lease of an agent that tells that."""
    bare = told_to_lease(ViewReport(node, NodeView(NodeState(()))), (node, f"uid-{node}"))
    packed = base64.b64encode(gzip.compress(text.encode(errors="surrogatepass"), mtime=0)).decode()
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return replace(bare, annotations={**bare.annotations, _VIEW: packed}, renewed=renewed)


@st.composite
def ways(draw: st.DrawFn, data: Any) -> tuple[Any, ...]:
    """The way to some value of the document; what has many fields draws no more than what has few."""
    path: tuple[Any, ...] = ()
    while True:
        spot = at(data, path)
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot))) if isinstance(spot, list) else []
        if not keys or (path and draw(st.integers(0, 5)) == 0):
            return path
        path = (*path, draw(st.sampled_from(keys)))


@st.composite
def garbled(draw: st.DrawFn, views: st.SearchStrategy[NodeView]) -> str:
    """The text of a view in which something is not as any agent writes it."""
    return draw(garbled_text(view_to_dict(told(draw(views)))))


@st.composite
def garbled_text(draw: st.DrawFn, data: Any) -> str:
    """The text of a document in which one to three values are other ones, are gone, or are as deep as no reader goes."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(ways(data))
        if not path:
            break
        spot = at(data, path)
        match draw(st.integers(0, 9)):
            case 0:
                data = without(data, path)
            case 1:
                data = with_value(data, path, f"{_RAW}{draw(st.sampled_from([100, 900, 990, 20_000]))}")
            case 2 | 3:
                data = with_value(data, path, draw(st.sampled_from(ODD)))
            case 4 | 5 if type(spot) is int:
                data = with_value(data, path, draw(st.integers(0, 65)))
            case 4 | 5 if isinstance(spot, list):
                some = draw(st.sampled_from([[], [*spot, *spot], spot[::-1], spot[1:], spot * 20]))
                data = with_value(data, path, some)
            case _:
                data = with_value(data, path, at(data, draw(ways(data))))
    return _deep(json.dumps(data))


def _deep(text: str) -> str:
    mark = json.dumps(_RAW)[:-1]
    while mark in text:
        before, _, rest = text.partition(mark)
        depth, _, after = rest.partition('"')
        text = f"{before}{'[' * int(depth)}{']' * int(depth)}{after}"
    return text
