"""The only YAML reader: YAML 1.1 as in PyYAML's safe loader, without dates, and bounded.

A few hundred bytes of YAML can expand to gigabytes, when every level repeats the anchor of the level before. So the reader
measures a document with every alias expanded before it constructs anything.
"""

from __future__ import annotations

from typing import Any

import yaml

from tranche.node.files.bounded import LIMIT

NODE_LIMIT = 50_000
"""Values, keys and lists of a document, with every alias expanded; the longest known layout file has 3,000."""
DEPTH_LIMIT = 50
_DIGITS = 100


class YamlError(ValueError):
    """The text is not YAML or exceeds a limit; the message says where and why, on one line."""


def load_yaml(text: str) -> Any:
    """The text's single document; the last of duplicate keys counts. Raises YamlError when there is none."""
    if len(text) > LIMIT:
        raise YamlError(f"it is longer than {LIMIT} characters")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _measure(root, {}, 0)
        return loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(" ".join(str(error).split())) from error
    except (LookupError, AttributeError, TypeError, OverflowError) as error:
        # The safe loader raises these for a value that its explicit tag does not allow, such as `!!int ""`.
        raise YamlError("a value does not match its type tag") from error


class _Loader(yaml.SafeLoader):
    """Reads a layout name such as 2026-01-01 as text, and only numbers short enough to print."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """One node; refuses too many nodes before they fill the memory."""
        self._nodes += 1
        self._depth += 1
        if self._nodes > NODE_LIMIT:
            raise YamlError(_TOO_MANY)
        if self._depth > DEPTH_LIMIT:
            raise YamlError(_TOO_DEEP)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_scalar(self, node: Any) -> Any:
        """The scalar's text."""
        if node.tag.endswith((":int", ":float")) and len(node.value) > _DIGITS:
            raise YamlError(f"a number has {len(node.value)} digits; at most {_DIGITS} are allowed")
        return super().construct_scalar(node)


_TOO_MANY = f"it has more than {NODE_LIMIT} values, counted with every alias written out"
_TOO_DEEP = f"it is nested more than {DEPTH_LIMIT} deep, counted with every alias written out"


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None], depth: int) -> tuple[int, int]:
    """The number of nodes and levels with every alias expanded. Raises YamlError past a limit."""
    found = known.get(id(node), ())
    if found is None:
        raise YamlError("an anchor contains an alias of itself")
    if found:
        return found
    if depth > DEPTH_LIMIT:
        raise YamlError(_TOO_DEEP)
    known[id(node)] = None
    count, levels = 1, 0
    for child in _children(node):
        size, below = _measure(child, known, depth + 1)
        count, levels = count + size, max(levels, below)
        if count > NODE_LIMIT:
            raise YamlError(_TOO_MANY)
    if levels >= DEPTH_LIMIT:
        raise YamlError(_TOO_DEEP)
    known[id(node)] = (count, levels + 1)
    return count, levels + 1


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
