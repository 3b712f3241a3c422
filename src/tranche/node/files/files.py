"""Reads and writes the files that users give to commands: YAML or JSON, by path, `-` for stdin and stdout.

They may be endless devices or silent pipes. And a few hundred bytes of YAML can expand to gigabytes, when every level repeats the
anchor of the level before: a document is measured with every alias expanded before anything is constructed. YAML is 1.1, as in
PyYAML's safe loader, without dates; 24:00, 010 and 1_0 are texts, not numbers.
"""

from __future__ import annotations

import io
import json
import os
import re
import select
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tranche.core.errors import PermissionDenied, TrancheError, UsageError
from tranche.node.state.state_file import write_output

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


LIMIT = 2**20
"""In bytes: the size limit of a ConfigMap, far above any layout, hooks, plan, checkpoint or configuration file."""
SILENCE_SECONDS = 60.0


STANDARD_STREAM = "-"


def read_bounded(path: str | Path) -> bytes:
    """The whole content of a file, pipe or device.

    Raises OSError when it cannot be read or a named pipe is silent for a minute, and ValueError past `LIMIT` bytes.
    """
    with io.BufferedReader(BoundedStream(path)) as stream:
        content = stream.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise ValueError(f"it is longer than {LIMIT} bytes")
    return content


class BoundedStream(io.RawIOBase):
    """A file, pipe or device of any length, or stdin for `-`, as it arrives.

    Raises OSError when it is unreadable or a named pipe is silent. stdin may be silent, as a person is.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._descriptor = -1  # close() runs even if opening fails
        self._descriptor = os.dup(sys.stdin.fileno()) if path == STANDARD_STREAM else _open(path)
        named_pipe = path != STANDARD_STREAM and stat.S_ISFIFO(os.fstat(self._descriptor).st_mode)
        self._silence = SILENCE_SECONDS if named_pipe else None

    def readable(self) -> bool:
        """Always true; the stream is read-only."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read some of the next bytes; returns their number, 0 at the end."""
        _await_data(self._descriptor, self._silence)
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        """Close the file."""
        if not self.closed and self._descriptor >= 0:
            os.close(self._descriptor)
        super().close()


def _open(path: str | Path) -> int:
    # Without O_NONBLOCK, opening a pipe waits until a writer opens the other end.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _await_data(descriptor: int, silence: float | None) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(None if silence is None else silence * 1000):
        raise TimeoutError(None, f"nothing was written to it for {silence:g} s")


NODE_LIMIT = 50_000
"""Values, keys and lists of a document, with every alias expanded; the longest known layout file has 3,000."""
DEPTH_LIMIT = 50
_DIGITS = 100


class YamlError(ValueError):
    """The text is not YAML or exceeds a limit; the message says where and why, on one line."""


def load_yaml(text: str, *, unique_keys: bool = False) -> Any:
    """The text's single document. Raises YamlError when there is none.

    The last of duplicate keys counts; with `unique_keys`, they are refused.
    """
    if len(text) > LIMIT:
        raise YamlError(f"it is longer than {LIMIT} characters")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _measure(root, {}, 0)
        if unique_keys:
            _refuse_duplicates(root)
        return loader.construct_document(root)
    except _DuplicateKey:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(" ".join(str(error).split())) from error
    except (LookupError, AttributeError, TypeError, OverflowError) as error:
        # The safe loader raises these for a value that its explicit tag does not allow, such as `!!int ""`.
        raise YamlError("a value does not match its type tag") from error


_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"(?:[-+]?[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
}
"""What is a number. PyYAML also reads 24:00 as 1440, 010 as 8 and 1_0 as 10."""


class _Loader(yaml.SafeLoader):
    """Reads a layout name such as 2026-01-01 and a time such as 24:00 as text, and only numbers short enough to print."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
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


_TOO_MANY = f"it has more than {NODE_LIMIT} values with every alias expanded"
_TOO_DEEP = f"it is nested more than {DEPTH_LIMIT} levels deep with every alias expanded"


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


class _DuplicateKey(ValueError):
    """A mapping has a key twice; the message names it."""


def _unique(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKey(f"the key {key} appears twice")
        found[key] = value
    return found


def _refuse_duplicates(node: yaml.Node) -> None:
    if isinstance(node, yaml.MappingNode):
        _unique((each.value, None) for each, _ in node.value if isinstance(each, yaml.ScalarNode))
    for child in _children(node):
        _refuse_duplicates(child)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


class _Dumper(yaml.SafeDumper):
    """Block style with lists of plain values on one line, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always true: write out repeated values."""
        return True


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.SequenceNode:
    plain = not any(isinstance(item, dict | list) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _represent_list)


def read_document(path: str, error: type[TrancheError], *, unique_keys: bool = False) -> object:
    """The file's decoded YAML or JSON document, as `load_yaml` reads it. Raises `error` when it is unreadable."""
    return parse_document(read_text(path, error), _name(path), error, unique_keys=unique_keys)


@contextmanager
def told_of(path: str) -> Iterator[None]:
    """Prefix the file's name to errors about its content that are raised inside the block."""
    try:
        yield
    except TrancheError as error:
        if _name(path) in error.message:
            raise
        raise type(error)(f"{_name(path)}: {error.message}", hint=error.hint) from error


def parse_document(text: str, source: str, error: type[TrancheError], *, unique_keys: bool = False) -> object:
    """The decoded document of a text already read; `source` names it in messages."""
    if len(text) <= LIMIT and text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_unique if unique_keys else None)
        except _DuplicateKey as reason:
            raise error(f"{source}: {reason}") from reason
        except (ValueError, RecursionError):
            pass  # a YAML flow mapping looks the same from outside
    try:
        return load_yaml(text, unique_keys=unique_keys)
    except _DuplicateKey as reason:
        raise error(f"{source}: {reason}") from reason
    except YamlError as reason:
        raise error(f"{source} is neither YAML nor JSON: {reason}") from reason


def yaml_text(data: object) -> str:
    """The data as YAML, with keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120, allow_unicode=True)


def write_text(path: str, text: str) -> None:
    """Write all of a file or nothing, as `write_output` does; `-` is stdout. Raises PermissionDenied or UsageError on failure."""
    if path == STANDARD_STREAM:
        sys.stdout.write(text)
        sys.stdout.flush()  # report success only after a complete write
        return
    try:
        write_output(Path(path), text.encode())
    except PermissionError as reason:
        raise PermissionDenied(f"no permission to write {path}") from reason
    except OSError as reason:
        raise UsageError(f"cannot write {path}: {reason.strerror}") from reason


def read_text(path: str, error: type[TrancheError]) -> str:
    """The file's UTF-8 text. Raises `error` when it is unreadable, endless or too long."""
    try:
        return read_bounded(path).decode("utf-8-sig")
    except OSError as reason:
        raise error(f"cannot read {_name(path)}: {reason.strerror}") from reason
    except UnicodeDecodeError as reason:
        raise error(f"{_name(path)} is not UTF-8 text: byte {reason.start} is invalid") from reason
    except ValueError as reason:  # too long, or a name with a NUL in it
        raise error(f"cannot read {_name(path)}: {reason}") from reason


def _name(path: str) -> str:
    return "stdin" if path == STANDARD_STREAM else path
