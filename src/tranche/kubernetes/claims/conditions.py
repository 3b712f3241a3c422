"""Writes a claim's conditions on a device as CEL, and reads them back. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tranche.core.json_text import read_json
from tranche.kubernetes.claims.vocabulary import DRIVER, AttributeName

_ATTRIBUTE = f'device.attributes["{DRIVER}"].'
_SIZE = f"{_ATTRIBUTE}{AttributeName.CARD_MEMORY} == "
_ISOLATION = f"{_ATTRIBUTE}{AttributeName.ISOLATION} == "
_ISOLATIONS = f"{_ATTRIBUTE}{AttributeName.ISOLATION} in "
_MECHANISM = f"{_ATTRIBUTE}{AttributeName.MECHANISM} != "
_MODEL = f"{_ATTRIBUTE}{AttributeName.MODEL}.lowerAscii().contains("


@dataclass(frozen=True, slots=True)
class DeviceCondition:
    """What a device has to meet; an empty field asks for nothing. `card_memory` in MiB, `model` in lower case."""

    card_memory: int | None = None
    isolations: frozenset[str] = frozenset()
    not_mechanism: str = ""
    model: str = ""


NO_CONDITIONS = DeviceCondition()


def write_conditions(wanted: DeviceCondition) -> list[str]:
    """One expression per condition. JSON's numbers, strings and lists are valid CEL."""
    return list(_expressions(wanted))


def _expressions(wanted: DeviceCondition) -> Iterator[str]:
    if wanted.card_memory is not None:
        yield f"{_SIZE}{wanted.card_memory}"
    if len(wanted.isolations) == 1:
        yield _ISOLATION + json.dumps(*wanted.isolations)
    elif wanted.isolations:
        yield _ISOLATIONS + json.dumps(sorted(wanted.isolations))
    if wanted.not_mechanism:
        yield _MECHANISM + json.dumps(wanted.not_mechanism)
    if wanted.model:
        yield f"{_MODEL}{json.dumps(wanted.model)})"


def read_conditions(expressions: Iterable[str]) -> tuple[DeviceCondition, tuple[str, ...]]:
    """The conditions in expressions of `write_conditions`' forms, and all other expressions unchanged."""
    found, unread = NO_CONDITIONS, []
    for each in expressions:
        known = _with_expression(found, each)
        found = known or found
        if known is None:
            unread.append(each)
    return found, tuple(unread)


def _with_expression(found: DeviceCondition, expression: str) -> DeviceCondition | None:
    start = next(
        (each for each in (_SIZE, _ISOLATION, _ISOLATIONS, _MECHANISM, _MODEL) if expression.startswith(each)), ""
    )
    text = expression.removeprefix(start)
    if not start or (start == _MODEL and not text.endswith(")")):
        return None
    try:
        value: Any = read_json(text.removesuffix(")") if start == _MODEL else text)
    except ValueError:
        return None
    if start == _SIZE:
        return replace(found, card_memory=value) if type(value) is int and value >= 0 else None
    if start == _ISOLATIONS:
        words = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
        return replace(found, isolations=frozenset(words)) if words and words == value else None
    if not isinstance(value, str):
        return None
    if start == _ISOLATION:
        return replace(found, isolations=frozenset((value,)))
    return replace(found, model=value) if start == _MODEL else replace(found, not_mechanism=value)
