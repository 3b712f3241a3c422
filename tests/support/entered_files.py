"""Which of the product's files a piece of work enters: a file is entered when a function of it runs, in any thread.

What runs because a module is imported is not counted, nor is the body of a class.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import tranche

_SOURCE = Path(tranche.__file__).parent


def module_of(code: CodeType) -> str:
    """The product's module that the code is in, without `tranche.`; "" for everybody else's."""
    path = Path(code.co_filename)
    if not path.is_relative_to(_SOURCE):
        return ""
    return ".".join(path.relative_to(_SOURCE).with_suffix("").parts).removesuffix(".__init__")


class Tracer:
    """Notes each module as it is entered, in the order of first entry.

    `counts` is told the outermost of the product's modules on the stack, and says whether that way is the one that is traced.
    `entered` is told each module once.
    """

    def __init__(
        self,
        entered: Callable[[str], None] = lambda module: None,
        counts: Callable[[str], bool] = lambda outermost: True,
    ) -> None:
        self.modules: list[str] = []
        self._entered = entered
        self._counts = counts
        self._known: dict[CodeType, str] = {}
        self._thread = threading.local()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Called by the interpreter at each call and return."""
        if event not in ("call", "return") or not (module := self._of(frame)):
            return
        importing: int = self._thread.__dict__.setdefault("importing", 0)
        if frame.f_code.co_name == "<module>":
            self._thread.importing = importing + (1 if event == "call" else -1)
            return
        runs = event == "call" and not importing and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if runs and module not in self.modules and self._counts(self._outermost(frame)):
            self.modules.append(module)
            self._entered(module)

    def _of(self, frame: FrameType) -> str:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = module_of(code)
        return self._known[code]

    def _outermost(self, frame: FrameType | None) -> str:
        found = ""
        while frame is not None:
            found = self._of(frame) or found
            frame = frame.f_back
        return found


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Trace this thread, and the threads that are started meanwhile."""
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


if __name__ == "__main__":
    from tranche.cli.main import main

    # Written down as it comes about: `tranche run` ends its process without returning.
    with Path(sys.argv[1]).open("a", buffering=1) as file, tracing(Tracer(lambda module: print(module, file=file))):
        main(sys.argv[2:])
