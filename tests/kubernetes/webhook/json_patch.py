"""As much of RFC 6902 as the webhook's patches use."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any


def patched(document: Any, patch: Iterable[Mapping[str, Any]]) -> Any:
    """The document after it; KeyError or IndexError where a path leads nowhere."""
    result = copy.deepcopy(document)
    for operation in patch:
        *way, last = [word.replace("~1", "/").replace("~0", "~") for word in operation["path"].split("/")[1:]]
        target = result
        for word in way:
            target = target[int(word)] if isinstance(target, list) else target[word]
        value = copy.deepcopy(operation["value"])
        if isinstance(target, list):
            if operation["op"] == "add":
                target.insert(len(target) if last == "-" else int(last), value)
            else:
                target[int(last)] = value
        elif operation["op"] == "replace" and last not in target:
            raise KeyError(last)
        else:
            target[last] = value
    return result
