"""Reads and writes the files that users give to commands: YAML or JSON, by path, `-` for stdin and stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tranche.core.errors import PermissionDenied, TrancheError, UsageError
from tranche.node.files.bounded import LIMIT, read_all, read_bounded
from tranche.node.files.yaml_reader import YamlError, load_yaml
from tranche.node.state.state_file import write_output

STANDARD_STREAM = "-"


class _Dumper(yaml.SafeDumper):
    """Block style with lists of plain values on one line, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always true: write out repeated values."""
        return True


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.SequenceNode:
    plain = not any(isinstance(item, dict | list) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _represent_list)


def read_document(path: str, error: type[TrancheError]) -> object:
    """The file's decoded YAML or JSON document; the last of duplicate keys counts. Raises `error` when it is unreadable."""
    return parse_document(read_text(path, error), _name(path), error)


@contextmanager
def told_of(path: str) -> Iterator[None]:
    """Prefix the file's name to errors about its content that are raised inside the block."""
    try:
        yield
    except TrancheError as error:
        if _name(path) in error.message:
            raise
        raise type(error)(f"{_name(path)}: {error.message}", hint=error.hint) from error


def parse_document(text: str, source: str, error: type[TrancheError]) -> object:
    """The decoded document of a text already read; `source` names it in messages."""
    if len(text) <= LIMIT and text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass  # a YAML flow mapping looks the same from outside
    try:
        return load_yaml(text)
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
        data = read_all(sys.stdin.fileno()) if path == STANDARD_STREAM else read_bounded(path)
        return data.decode("utf-8-sig")
    except OSError as reason:
        raise error(f"cannot read {_name(path)}: {reason.strerror}") from reason
    except UnicodeDecodeError as reason:
        raise error(f"{_name(path)} is not UTF-8 text: see its byte {reason.start}") from reason
    except ValueError as reason:  # too long, or a name with a NUL in it
        raise error(f"cannot read {_name(path)}: {reason}") from reason


def _name(path: str) -> str:
    return "stdin" if path == STANDARD_STREAM else path
