"""What a condition saw that did not come true: its words, what it called, and what it was answered."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any, Protocol, runtime_checkable

_LONGEST = 4000
"""In characters: so much of an answer is shown."""


@runtime_checkable
class Owner(Protocol):
    """Something of a test that can say how it stands, for people."""

    @property
    def standing(self) -> str:
        """All that tells why nothing goes on."""
        ...


def last_look(condition: Callable[[], object]) -> str:
    """Ask the condition once more, and say what it is and what its calls returned, each on a line of its own.

    What the condition speaks of, and can tell how it stands, does so.
    """
    code = getattr(condition, "__code__", None)
    answers: list[str] = []

    def note(frame: FrameType, event: str, value: Any) -> None:
        if event == "return" and _called_by(frame, code):
            answers.append(f"  {frame.f_code.co_name}: {_as_text(value)}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        outcome = repr(condition())
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    finally:
        sys.setprofile(before)
    return "\n".join([_source(condition), *answers, *_standings(condition), f"  asked once more: {outcome}"])


def _called_by(frame: FrameType, code: CodeType | None) -> bool:
    """Whether the condition itself made the call, or a loop in it did."""
    caller = frame.f_back
    while caller is not None and caller.f_code.co_name in ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"):
        caller = caller.f_back
    return caller is not None and caller.f_code is code and not frame.f_code.co_name.endswith("comp>")


def _standings(condition: Callable[[], object]) -> Iterator[str]:
    spoken: dict[str, object] = {}
    if isinstance(condition, partial):
        spoken |= {f"argument {number}": each for number, each in enumerate(condition.args)}
    elif inspect.isfunction(condition):
        spoken |= inspect.getclosurevars(condition).nonlocals
    for name, each in spoken.items():
        with suppress(Exception):  # of what is broken nothing can be told, and the wait's own failure counts
            if isinstance(each, Owner):
                yield f"  {name} stands so: {each.standing}"


def _source(condition: Callable[[], object]) -> str:
    if inspect.isfunction(condition):
        with suppress(OSError):
            return textwrap.dedent(inspect.getsource(condition)).rstrip()
    return repr(condition)


def _as_text(value: object) -> str:
    if isinstance(value, subprocess.CompletedProcess):
        text = f"exit code {value.returncode}\n{value.stdout}{value.stderr}".rstrip()
    else:
        text = repr(value)
    return text if len(text) <= _LONGEST else f"... {text[-_LONGEST:]}"
