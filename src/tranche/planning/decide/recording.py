"""A decision with all its inputs, so that it can be replayed elsewhere.

A recorded decision is one JSON document. `decide_again` runs this version's planner on the recorded state. If its outcome differs
from the recorded one, the planner has changed, or the record was.

Frozen dataclasses and named tuples become JSON data and back by their type hints, and fields keep their names. A type with a form
agreed elsewhere (a profile's name, a request) keeps it.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tranche.core.allocation import Grant, NodeView, WithheldDevice
from tranche.core.errors import TrancheError, UsageError
from tranche.core.keeper import Keeper
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.request import Request
from tranche.core.wire import (
    grant_from_dict,
    grant_to_dict,
    keeper_from_dict,
    keeper_to_dict,
    request_from_dict,
    request_to_dict,
)
from tranche.planning.decide.allocate import Granted, Waiting
from tranche.planning.decide.queue import WaitingRequest, may_start
from tranche.planning.steps import Step, step_from_dict


def _encode(value: Any) -> Any:
    """Records, tuples, frozen sets, mappings with text keys, enums and plain values as JSON data; TypeError for other values."""
    for cls in type(value).__mro__:
        if cls in _WRITERS:
            return _WRITERS[cls](value)
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case _ if (names := _fields(value.__class__)) is not None:
            return {name: _encode(getattr(value, name)) for name in names}
        case tuple():
            return [_encode(each) for each in value]
        case frozenset():
            return sorted((_encode(each) for each in value), key=repr)
        case Mapping():
            return {_encode(key): _encode(each) for key, each in value.items()}
        case _:
            raise TypeError(f"no JSON for {type(value).__name__}")


def _decode(hint: Any, data: Any) -> Any:
    """The value of that type; raises TypeError, KeyError or ValueError for other data."""
    if hint in _FORMS:
        return _FORMS[hint][1](data)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        present = [each for each in arguments if each is not NoneType]
        if data is None and len(present) < len(arguments):
            return None
        (only,) = present
        return _decode(only, data)
    if origin is tuple:
        if arguments[1:] == (...,):
            return tuple(_decode(arguments[0], each) for each in data)
        return tuple(_decode(each, part) for each, part in zip(arguments, data, strict=True))
    if origin is frozenset:
        return frozenset(_decode(arguments[0], each) for each in data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_decode(arguments[0], key): _decode(arguments[1], each) for key, each in data.items()}
    if (required := _fields(hint)) is not None:
        hints = _hints(hint)
        names = [name for name, needed in required.items() if needed or name in data]
        return hint(**{name: _decode(hints[name], data[name]) for name in names})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(data)
    if hint is float and isinstance(data, int):
        return float(data)
    if hint not in (bool, int, float, str) or not isinstance(data, hint):
        raise TypeError(f"{reprlib.repr(data)} is not of type {hint}")
    return data


@cache
def _fields(cls: Any) -> Mapping[str, bool] | None:
    """The fields of a record, and whether each is required: one with a default may be newer than the data."""
    if dataclasses.is_dataclass(cls):
        missing = dataclasses.MISSING
        return {each.name: each.default is each.default_factory is missing for each in dataclasses.fields(cls)}
    if hasattr(cls, "_fields"):
        return {name: name not in cls._field_defaults for name in cls._fields}
    return None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


FORMAT_VERSION = "tranche.dev/v1"


@dataclass(frozen=True, slots=True)
class Impossible:
    """The request can never be served, with the error's reason word and message."""

    reason: str
    message: str


Outcome = Granted | Waiting | Impossible


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """The inputs of a decision about a waiting request; `waiters` are in order of arrival, `now` is seconds since the epoch."""

    view: NodeView
    waiters: tuple[WaitingRequest, ...]
    waiter_id: str
    adopt_foreign_destroy: bool = False
    now: float | None = None

    @property
    def request(self) -> Request:
        """The request to decide about."""
        return next(waiter.request for waiter in self.waiters if waiter.id == self.waiter_id)


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A question and its outcome; `time` is seconds since the epoch."""

    time: float
    question: RecordedRequest
    outcome: Outcome


def answer(question: RecordedRequest) -> Outcome:
    """The planner's decision."""
    try:
        return may_start(
            question.view,
            question.waiters,
            question.waiter_id,
            adopt_foreign_destroy=question.adopt_foreign_destroy,
            now=question.now,
        )
    except TrancheError as error:
        return Impossible(error.reason, error.message)


def decision_to_dict(decision: RecordedDecision) -> dict[str, Any]:
    """The record as JSON data."""
    return {
        "apiVersion": FORMAT_VERSION,
        "kind": "Decision",
        "time": decision.time,
        "question": _encode(decision.question),
        "outcome": {type(decision.outcome).__name__: _encode(decision.outcome)},
    }


def decision_from_dict(data: object) -> RecordedDecision:
    """The record that decision_to_dict wrote; raises UsageError for other data."""
    if not isinstance(data, dict) or data.get("kind") != "Decision" or data.get("apiVersion") != FORMAT_VERSION:
        raise UsageError(
            f"this is not a {FORMAT_VERSION} Decision", hint="record decisions with: tranche run --record FILE"
        )
    try:
        ((name, outcome),) = data["outcome"].items()
        question = _decode(RecordedRequest, data["question"])
        if question.waiter_id not in [waiter.id for waiter in question.waiters]:
            raise ValueError(f"no request {question.waiter_id} is waiting")
        return RecordedDecision(float(data["time"]), question, _decode(_OUTCOMES[name], outcome))
    except (KeyError, TypeError, ValueError, AttributeError, TrancheError) as error:
        raise UsageError(f"a recorded decision cannot be read: {_fault(error)}") from error


def view_to_dict(view: NodeView) -> dict[str, Any]:
    """A view alone as JSON data, for decisions about a machine elsewhere."""
    found: dict[str, Any] = _encode(view)
    return found


def view_from_dict(data: object) -> NodeView:
    """The view that view_to_dict wrote; raises UsageError for other data."""
    try:
        found: NodeView = _decode(NodeView, data)
    except (KeyError, TypeError, ValueError, AttributeError, TrancheError) as error:
        raise UsageError(f"a recorded view cannot be read: {_fault(error)}") from error
    return found


def _fault(error: Exception) -> str:
    """The fault in words: Python's own message would name only keys and attributes."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, TypeError | AttributeError):
        return "a field has the wrong type"
    return str(error)


def withheld_to_dict(withheld: WithheldDevice) -> dict[str, Any]:
    """A withheld place as JSON data."""
    place, why, for_large, faulty = withheld
    return {"place": grant_to_dict(place), "why": why, "forLarge": for_large, "faulty": faulty}


def withheld_from_dict(data: Mapping[str, Any]) -> WithheldDevice:
    """The place that withheld_to_dict wrote; raises any of Python's data errors for other data."""
    for_large, faulty = bool(data["forLarge"]), bool(data.get("faulty"))
    return WithheldDevice(grant_from_dict(data["place"]), str(data["why"]), for_large, faulty)


_OUTCOMES: Mapping[str, type[Outcome]] = {cls.__name__: cls for cls in (Granted, Waiting, Impossible)}

# The types with a form agreed elsewhere, each with its writer and its reader.
_FORMS: Mapping[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    ProfileName: (str, parse_profile),
    Request: (request_to_dict, request_from_dict),
    Grant: (grant_to_dict, grant_from_dict),
    Keeper: (keeper_to_dict, keeper_from_dict),
    WithheldDevice: (withheld_to_dict, withheld_from_dict),
    Step: (Step.to_dict, step_from_dict),
}
_WRITERS = {cls: write for hint, (write, _) in _FORMS.items() for cls in (get_args(hint) or (hint,))}
