"""A child process run to its end: signals passed on, the exit code as a shell gives it.

The kernel may hand a process's signal to any thread that has not blocked it, and a library may have started such threads: NVML
does. So nothing here depends on who gets a signal. The end of the child is read off its pidfd by a thread of ours, which tells
the waiting thread by a signal to that thread alone. A signal that a foreign thread takes is written to a pipe by Python's own
handler, and comes the same way.

What the command leaves behind is found by descent: an orphan of it becomes a child of this process, not of init. A process may
close every file that it inherits and overwrite its environment. Its descent stays known while this process lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType

from tranche.node.processes.processes import Process, children_of

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class OrphanTracker:
    """The living children of this process that it did not have before. Make it before the command starts."""

    def __init__(self) -> None:
        # A kernel that refuses leaves the other evidence: the share's lock and its name in the environment.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._others = frozenset(_children())

    def living(self) -> tuple[Process, ...]:
        """Those that live now, oldest first. The command itself must have been waited for."""
        # One look goes from process to process, and misses whoever gets a new parent behind it.
        return self._look() or self._look()

    def _look(self) -> tuple[Process, ...]:
        return tuple(each for each in _children() if each not in self._others)


def reap_orphans(but: int = 0) -> bool:
    """Wait for every child that has ended, except for the process `but`; whether this process has a child still."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)
        return True
    return False


def _children() -> tuple[Process, ...]:
    # The kernel says at once when there is none; /proc takes longer to read.
    return children_of(os.getpid()) if reap_orphans() else ()


_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
_WATCHED = (*_FORWARDED, signal.SIGCHLD)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_SENT_BY_KERNEL = 0x80  # SI_KERNEL: the terminal sent it, or the end of a shell did


def run_child(
    path: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Callable[[int], None] = lambda pid: None,
    within: AbstractContextManager[None] | None = None,
    starting: Callable[[], None] = lambda: None,
) -> int:
    """Run the command to its end and return its exit code, 128 + N when signal N ended it.

    Signals that reach this process are passed on, unless the terminal sent them to the child as well. What stops the child at a
    terminal stops this process as well. `started` is told the child's pid; the child is killed when that raises. OSError when
    the file at `path` cannot be executed. The child is started `within` that context. `starting` is called when each further
    signal will reach the child; no child is started when that raises. Call it from the main thread.
    """
    with _signals_collected() as (before, collected):
        starting()
        with within or contextlib.nullcontext():
            pid = os.posix_spawn(
                path, list(command), dict(environment), setsigmask=before, setsigdef=_IGNORED_BY_PYTHON
            )
        try:
            started(pid)
            with _announced(pid, collected):
                _pass_signals_on(pid)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        _, status = os.waitpid(pid, 0)
        # What is still to be passed on was meant for the child.
        while signal.sigtimedwait(_WATCHED, 0) is not None:
            pass
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def _pass_signals_on(pid: int) -> None:
    """Return when the child has ended; it is not reaped, so its pid is still its own."""
    while True:
        info = signal.sigwaitinfo(_WATCHED)
        if info.si_signo == signal.SIGCHLD:
            # SIGCHLD may come of another child, or of one that only stopped.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            reap_orphans(but=pid)
        elif info.si_code != _SENT_BY_KERNEL or not _sent_to_both(pid, info.si_signo):
            with contextlib.suppress(PermissionError):  # the command became another user
                os.kill(pid, info.si_signo)


def _sent_to_both(pid: int, number: int) -> bool:
    """Whether the kernel has sent that child what it sent this process.

    It signals process groups, and the child may have left this one. The loss of a terminal it tells the leader of the session
    alone.
    """
    if number == signal.SIGHUP and os.getsid(0) == os.getpid():
        return False
    return os.getpgid(pid) == os.getpgrp()


@contextmanager
def _signals_collected() -> Iterator[tuple[set[signal.Signals], int]]:
    """Hold the watched signals back from this thread; the mask before, and a pipe with those that another thread took."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)}
    # What is ignored stays ignored, so that nohup works. An ignored SIGCHLD would take the child's exit code away.
    heeded = [each for each in _FORWARDED if signal.getsignal(each) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, _collect) for number in (*heeded, signal.SIGCHLD)}
    try:
        yield before, reading
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reading)
        os.close(writing)


def _collect(number: int, frame: FrameType | None) -> None:
    """Nothing: the interpreter has written the signal to the pipe."""


@contextmanager
def _announced(pid: int, collected: int) -> Iterator[None]:
    """Send this thread SIGCHLD when the child has ended, and every signal that another thread took."""
    waiting = threading.get_ident()
    ended = os.pidfd_open(pid)
    reading, writing = os.pipe2(os.O_CLOEXEC)

    def announce() -> None:
        poll = select.poll()  # select takes no descriptor beyond 1,023
        for descriptor in (ended, collected, reading):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if reading in ready:
                return
            if collected in ready:
                for number in os.read(collected, 4096):
                    signal.pthread_kill(waiting, number)
            if ended in ready:
                signal.pthread_kill(waiting, signal.SIGCHLD)
                return

    # The thread inherits the mask: it takes no signal itself.
    thread = threading.Thread(target=announce, name="child", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(writing)
        thread.join()
        os.close(reading)
        os.close(ended)
