"""Child processes of a test: forked from the warm interpreter, so that a test can afford hundreds of them.

NVML is only ever initialised in such a child. The process of the tests itself never loads the simulator under NVML's name, so
that tests of a real GPU may run in it too.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

from tests.node.machines import Node
from tranche.node.host import Host

T = TypeVar("T")
P = ParamSpec("P")


class ChildFailed(AssertionError):
    """A child raised; the message is its traceback."""


class Child(Generic[T]):
    """A forked process that runs one function and passes its result back."""

    def __init__(self, work: Callable[[], T]) -> None:
        reading, results = os.pipe()
        self._results: int | None = reading
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # From Python 3.12 on forking beside threads is warned of; those of the test runner hold nothing that a child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _run(work, results)
        os.close(results)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal, unless it was already waited for."""
        if self._status is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code as subprocess gives it: negative when a signal ended it."""
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]
        return os.waitstatus_to_exitcode(self._status)

    def result(self) -> T:
        """What its function returned; ChildFailed when it raised or did not get to its end."""
        assert self._results is not None, "the result was read already"
        try:
            with os.fdopen(self._results, "rb") as stream:
                data = stream.read()
            code = self.wait()
        except BaseException:
            # The test's time is over. pytest has Python print the stacks of all threads at this signal.
            self.kill(signal.SIGABRT)
            self.wait()
            raise
        finally:
            self._results = None
        if not data:
            raise ChildFailed(f"the child ended with {code} and no result")
        succeeded, value = pickle.loads(data)
        if not succeeded:
            raise ChildFailed(value)
        result: T = value
        return result

    def end(self) -> None:
        """Kill it if it still runs, and return when it is gone, also from between the fork and the exec of a program."""
        self.kill()
        self.wait()
        if self._results is not None:
            with os.fdopen(self._results, "rb") as stream:
                stream.read()
            self._results = None


def _run(work: Callable[[], Any], results: int) -> NoReturn:
    code = 1
    try:
        try:
            answer: tuple[bool, Any] = (True, work())
            code = 0
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(results, "wb") as stream:
            pickle.dump(answer, stream)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def in_child(work: Callable[[], T]) -> T:
    """The result of a function that runs in a process of its own."""
    return Child(work).result()


def isolated(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test in a process of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        in_child(lambda: test(*args, **kwargs))

    return run


def killed_at_boundary(node: Node, boundary: int, work: Callable[[Host], object], **options: Any) -> bool:
    """Kill a process amid its work, at that boundary of its journal, counted from 0; whether it came so far."""

    def run() -> None:
        count = 0

        def at_boundary() -> None:
            nonlocal count
            if count == boundary:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        with node.host(boundary=at_boundary, **options) as host:
            work(host)

    return Child(run).wait() == -signal.SIGKILL


def kill_at_every_boundary(
    node: Node, work: Callable[[Host], object], look: Callable[[Host, bool], None], *, boundaries: int, **options: Any
) -> None:
    """Kill a process amid the work at each boundary of its journal in turn, until one comes through, and look after each.

    `look` is told whether the process was killed; `options` are those of its host. The work has at least so many `boundaries`.
    """
    for boundary in count():
        killed = killed_at_boundary(node, boundary, work)

        def after(killed: bool = killed) -> None:
            with node.host(**options) as host:
                look(host, killed)

        in_child(after)
        if not killed:
            assert boundary >= boundaries
            return
