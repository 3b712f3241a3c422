"""Runs `tranche` under a tracer: through which modules the request passes. The arguments are a file and tranche's own.

The call stack is taken at four kinds of moments: the request is parsed, it is decided, an act tells the driver something, and the
command is started. Each module that was entered since the moment before, and is on the stack, is a line of the file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import tranche.cli.main
from tranche.core.request import parse_request
from tranche.local.child import run_child
from tranche.planning.decide.allocate import decide

_SOURCE = Path(tranche.cli.main.__file__).parents[1]
_MOMENTS = {function.__code__ for function in (parse_request, decide, run_child)}


def module_of(frame: FrameType) -> str:
    """The module of Tranche that the frame's function is in; empty for others, and while a module is imported."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(_SOURCE) or frame.f_code.co_name == "<module>":
        return ""
    return ".".join(("tranche", *path.relative_to(_SOURCE).with_suffix("").parts))


def is_told_by_an_act(frame: FrameType) -> bool:
    """Whether an act has called the driver."""
    caller = frame.f_back
    return (
        module_of(frame) == "tranche.hardware.nvml"
        and caller is not None
        and module_of(caller).startswith("tranche.node.execution.acts.")
    )


class Tracer:
    """Writes the path down while it comes about, since `tranche run` ends its process without returning."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._open: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Called by the interpreter at each call and return."""
        if event != "call" or not (frame.f_code in _MOMENTS or is_told_by_an_act(frame)):
            return
        stack: list[FrameType] = []
        each: FrameType | None = frame
        while each is not None:
            if module_of(each):
                stack.insert(0, each)
            each = each.f_back
        for caller, passed in zip([None, *stack], stack, strict=False):
            within = caller is not None and module_of(caller) == module_of(passed)
            if not within and not any(passed is other for other in self._open):
                self._file.write(module_of(passed) + "\n")
        self._open = stack


if __name__ == "__main__":
    sys.setprofile(Tracer(Path(sys.argv[1])))
    tranche.cli.main.main(sys.argv[2:])
