"""Operations begun from pages, each on its own thread, so that a hanging driver blocks nothing else.

The threads end with the process, as if a command were killed. The next look at the machine undoes what one left half done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, replace
from enum import StrEnum

from tranche.core.errors import AllocationUnknown, GpuBusy, StateMoved, TrancheError

_LOG = logging.getLogger(__name__)
_MOST_RUNNING = 8
_KEPT = 200

Work = Callable[[Callable[[str], None]], str]
"""Does the work, tells each step as it begins, and says how it went."""


class OperationState(StrEnum):
    """REFUSED: nothing was changed. FAILED: events say what was changed and undone."""

    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Operation:
    """How far an operation is: `steps` of `expected` have begun; `said` is the outcome. `again` is the address of its plan."""

    id: str
    title: str
    again: str
    expected: int
    state: OperationState = OperationState.RUNNING
    steps: tuple[str, ...] = ()
    said: str = ""


class OperationRunner:
    """Safe to use from several threads. `news` is called on every change, from any thread."""

    def __init__(self, news: Callable[[], None], new_id: Callable[[], str]) -> None:
        self._news = news
        self._new_id = new_id
        self._lock = threading.Lock()
        self._known: dict[str, Operation] = {}

    def begin(self, title: str, again: str, expected: int, work: Work) -> str | None:
        """Begin an operation and return its id; None while too many run."""
        with self._lock:
            running = [each for each in self._known.values() if each.state is OperationState.RUNNING]
            if len(running) >= _MOST_RUNNING:
                return None
            begun = Operation(self._new_id(), title, again, expected)
            self._known[begun.id] = begun
            for old in [each.id for each in self._known.values() if each.state is not OperationState.RUNNING][:-_KEPT]:
                del self._known[old]
        run = copy_context().run
        threading.Thread(target=run, args=(self._do, begun.id, work), daemon=True, name="operation").start()
        return begun.id

    def get(self, id: str) -> Operation | None:
        """The operation as it is now; None when it is no longer known."""
        with self._lock:
            return self._known.get(id)

    def _do(self, id: str, work: Work) -> None:
        def tell(step: str) -> None:
            self._change(id, lambda before: replace(before, steps=(*before.steps, step)))

        state = OperationState.DONE
        try:
            said = work(tell)
        except TrancheError as error:
            # Raised before the first step, these errors mean that nothing was changed.
            refused = isinstance(error, AllocationUnknown | GpuBusy | StateMoved) and not self._begun(id)
            state = OperationState.REFUSED if refused else OperationState.FAILED
            said = f"{error.message}. {error.hint}".strip() if error.hint else f"{error.message}."
        except Exception as error:
            _LOG.exception("an operation failed")
            state, said = OperationState.FAILED, f"{type(error).__name__}: {error}"
        self._change(id, lambda before: replace(before, state=state, said=said))

    def _begun(self, id: str) -> bool:
        found = self.get(id)
        return found is not None and bool(found.steps)

    def _change(self, id: str, change: Callable[[Operation], Operation]) -> None:
        with self._lock:
            self._known[id] = change(self._known[id])
        self._news()
