"""Frozen dataclasses as JSON data and back, by their type hints: for what is recorded whole, as a decision with its view.

Fields keep their names. A type for which a form of its own is agreed elsewhere (a profile's name, a request) has a `TypeCodec`.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


@dataclasses.dataclass(frozen=True, slots=True)
class TypeCodec:
    """How values of `hint`, a type or a union, are written and read."""

    hint: Any
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Codec:
    """Writes and reads values made of dataclasses, tuples, frozen sets, mappings with texts for keys, enums and plain values."""

    def __init__(self, forms: Sequence[TypeCodec] = ()) -> None:
        self._by_hint = {form.hint: form for form in forms}
        self._by_class = {cls: form for form in forms for cls in (get_args(form.hint) or (form.hint,))}

    def encode(self, value: Any) -> Any:
        """The value as JSON data; TypeError for what is none of the kinds above."""
        for cls in type(value).__mro__:
            if cls in self._by_class:
                return self._by_class[cls].encode(value)
        match value:
            case Enum():
                return value.value
            case None | bool() | int() | float() | str():
                return value
            case tuple():
                return [self.encode(each) for each in value]
            case frozenset():
                return sorted((self.encode(each) for each in value), key=repr)
            case Mapping():
                return {self.encode(key): self.encode(each) for key, each in value.items()}
            case _ if dataclasses.is_dataclass(value):
                return {field.name: self.encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
            case _:
                raise TypeError(f"no JSON for {type(value).__name__}")

    def decode(self, hint: Any, data: Any) -> Any:
        """The value of that type; TypeError, KeyError or ValueError when the data are not one."""
        if hint in self._by_hint:
            return self._by_hint[hint].decode(data)
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            present = [each for each in arguments if each is not NoneType]
            if data is None and len(present) < len(arguments):
                return None
            (only,) = present
            return self.decode(only, data)
        if origin is tuple:
            if arguments[1:] == (...,):
                return tuple(self.decode(arguments[0], each) for each in data)
            return tuple(self.decode(each, part) for each, part in zip(arguments, data, strict=True))
        if origin is frozenset:
            return frozenset(self.decode(arguments[0], each) for each in data)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {self.decode(arguments[0], key): self.decode(arguments[1], each) for key, each in data.items()}
        if dataclasses.is_dataclass(hint):
            return self._dataclass(hint, data)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(data)
        if hint is float and isinstance(data, int):
            return float(data)
        if hint not in (bool, int, float, str) or not isinstance(data, hint):
            raise TypeError(f"{reprlib.repr(data)} is no {hint}")
        return data

    def _dataclass(self, cls: Any, data: Mapping[str, Any]) -> Any:
        hints = _hints(cls)
        return cls(
            **{
                field.name: self.decode(hints[field.name], data[field.name])
                for field in dataclasses.fields(cls)
                if field.name in data or _required(field)
            }
        )


def _required(field: dataclasses.Field[Any]) -> bool:
    """Whether the field has to be given; one with a default may be younger than the data."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)
