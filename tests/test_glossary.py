"""The last word of a public class is one that the glossary explains, or a plain word that it lists."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs/reference/glossary.md").read_text()
ERRORS = (ROOT / "docs/reference/errors.md").read_text()
"""The name of an error is its reason word, which this page explains."""


def explained_words() -> set[str]:
    """The words of the tables' first column, one for each noun."""
    cells = re.findall(r"^\| ([^|]+) \|", GLOSSARY, re.MULTILINE)
    return {
        word.lower() for cell in cells for word in re.findall(r"[A-Za-z-]+", cell.replace("time-slicing", "timeslice"))
    }


def plain_words() -> set[str]:
    """The plain words, which need no sentence."""
    listed = GLOSSARY.split("## Plain words in names of classes", 1)[1]
    return set(re.findall(r"`([a-z]+)`", listed))


def public_classes() -> Iterator[str]:
    """All but the events, whose names say what happened."""
    for path in sorted((ROOT / "src/tranche").rglob("*.py")):
        if path.match("core/events.py"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def last_word(name: str) -> str:
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z0-9]*|[A-Z0-9]+", name)
    return str(words[-1]).lower()


def coined(names: Collection[str]) -> list[str]:
    """The classes whose last word nobody explains; a plural is explained by its singular."""
    known = explained_words() | plain_words()
    return [
        name
        for name in names
        if not {last_word(name), last_word(name).removesuffix("s")} & known and f"`{name}`" not in ERRORS
    ]


def test_each_class_is_named_by_a_word_that_is_explained() -> None:
    assert coined(list(public_classes())) == []


@pytest.mark.parametrize("name", ["SickBay", "DeviceVeil", "NodeDeed", "Doorbell"])
def test_a_coinage_is_found(name: str) -> None:
    assert coined([name]) == [name]


def test_no_plain_word_is_listed_in_vain() -> None:
    used = {last_word(name) for name in public_classes()}
    assert plain_words() - used - {word.removesuffix("s") for word in used} == set()
