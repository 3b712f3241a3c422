"""The one reader of YAML: 1.1 as PyYAML's safe loader has it, without dates, and bounded.

A few hundred bytes of YAML can stand for gigabytes, when every level repeats the anchor of the level before. So a document is
measured with every alias written out, before anything is made of it.
"""

from __future__ import annotations

from typing import Any

import yaml

from tranche.node.files.bounded import LIMIT

NODE_LIMIT = 50_000
"""Values, keys and lists of a document, with every alias written out; the longest layout file that is known has 3,000."""
DEPTH_LIMIT = 50
_DIGITS = 100


class YamlError(ValueError):
    """The text is not YAML, or more than is read; the message says where and why, on one line."""


def load_yaml(text: str) -> Any:
    """The one document of the text; duplicate keys: the last one counts. NotYaml otherwise."""
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
        # What the safe loader raises for a value that its explicit tag does not allow, such as `!!int ""`.
        raise YamlError("a value is not of the type that it is tagged with") from error


class _Loader(yaml.SafeLoader):
    """A layout named 2026-01-01 is text, and a number has a length that can be printed."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """One node; refused when there are too many, before they fill the memory."""
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
            raise YamlError(f"a number has {len(node.value)} digits; at most {_DIGITS} are read")
        return super().construct_scalar(node)


_TOO_MANY = f"it has more than {NODE_LIMIT} values, counted with every alias written out"
_TOO_DEEP = f"it is nested more than {DEPTH_LIMIT} deep, counted with every alias written out"


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None], depth: int) -> tuple[int, int]:
    """How many nodes, and how many levels, the node has when every alias is written out; NotYaml past a limit."""
    found = known.get(id(node), ())
    if found is None:
        raise YamlError("an anchor holds an alias of itself")
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
