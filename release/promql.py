"""Which metrics and labels a PromQL expression names: enough of its grammar to find what does not exist."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[a-zA-Z_:][a-zA-Z0-9_:]*|\d[\w.]*|\[[^\]]*\]|.""", re.DOTALL
)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = _GROUPING | {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass(frozen=True, slots=True)
class PromqlNames:
    """The metrics that an expression reads and the labels that it selects or groups by."""

    metrics: frozenset[str]
    labels: frozenset[str]


def names_in(expression: str) -> PromqlNames:
    """Those of one expression, which is taken to be well formed."""
    tokens = [token for token in _TOKEN.findall(expression) if not token.isspace()]
    metrics: set[str] = set()
    labels: set[str] = set()
    closing = ""
    for place, token in enumerate(tokens):
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        before = tokens[place - 1] if place else ""
        if token == "{" or (token == "(" and before.lower() in _GROUPING):
            closing = "}" if token == "{" else ")"
        elif token == closing:
            closing = ""
        elif _NAME.fullmatch(token):
            if closing == ")" or (closing == "}" and before in ("{", ",")):
                labels.add(token)
            elif not closing and following not in ("(", "by", "without") and token.lower() not in _WORDS:
                metrics.add(token)
    return PromqlNames(frozenset(metrics), frozenset(labels))
