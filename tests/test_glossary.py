"""The last word of a public class is one that the glossary explains, or a plain word."""

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
PLAIN_WORDS = frozenset(
    re.findall(
        "[a-z]+",
        """
    actor authenticator cache cancelled candidate capacity certificate change client clock command component
    condition config connection context credentials cut driver edits element error event executor explanation facts family
    file filter finding fit fleet folder formatter granted group handler holder hook host identity impossible
    installation interrupted inventory job key kind leader lease ledger limit list lock log long machine manager
    memory mismatch model moment mount name node observation occupancy offer operation option order page permission
    phase pipe place pod preparer preview process processes publisher reader readiness reading reason record ref refused
    reporter requirement response result room row runner sample server set settings sharing size source span spec state status
    store strategy stream summary supervisor table task timeout tracker type unit usage user value waiting watch webhook
    writer
    """,
    )
)
"""Last words of class names with their usual meaning, which the glossary need not explain."""


def explained_words() -> set[str]:
    """The words in bold, one for each noun."""
    cells = re.findall(r"^- \*\*([^*]+)\*\*", GLOSSARY, re.MULTILINE)
    return {
        word.lower() for cell in cells for word in re.findall(r"[A-Za-z-]+", cell.replace("time-slicing", "timeslice"))
    }


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
    known = explained_words() | PLAIN_WORDS
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
    assert PLAIN_WORDS - used - {word.removesuffix("s") for word in used} == set()
