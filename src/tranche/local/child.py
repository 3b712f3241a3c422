"""Runs a child process to its end: passes signals on, and returns the exit code as a shell would.

The kernel may deliver a process's signal to any thread that has not blocked it. A library may have started such threads; NVML
does. So nothing here depends on which thread gets a signal. A thread of ours learns from the child's pidfd that the child has
ended, and signals only the waiting thread. When a foreign thread takes a signal, Python's own handler writes it to a pipe, and it
arrives the same way.

Descent identifies what the command leaves behind: its orphans become children of this process, not of init. A process may close
every file it inherits and overwrite its environment, but its descent stays known while this process lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import FrameType
from typing import NamedTuple

from tranche.core.errors import CommandNotFound
from tranche.node.locks.interrupts import note_signal
from tranche.node.processes.processes import Process, children_of

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def find_command(name: str, environment: Mapping[str, str]) -> str:
    """The path of the command, looked up as the child would; CommandNotFound otherwise."""
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise CommandNotFound(
            f"'{name}' is not an executable command",
            hint="name a program on the PATH, or the path of an executable file",
        )
    return found


class Launch(NamedTuple):
    """How a command starts: `text` stands for it where people read it, and `starting` receives the share's variables before.

    `accepted` is called when the request was found possible, so that it waits or is served, and again when that goes on.
    `waits_again` is called when the command was preempted, and its request waits once more.
    """

    text: str = ""
    starting: Callable[[Mapping[str, str]], None] = lambda variables: None
    accepted: Callable[[], None] = lambda: None
    waits_again: Callable[[], None] = lambda: None


PLAIN = Launch()


def command_text(command: Sequence[str]) -> str:
    """The command for people; a byte that is not UTF-8 shows as the replacement character."""
    return os.fsencode(shlex.join(command)).decode(errors="replace")


@contextmanager
def reporting_not_executable(command: Sequence[str]) -> Iterator[None]:
    """CommandNotFound for an error of the system in the block, which starts that command."""
    try:
        yield
    except OSError as error:
        hint = "a script needs a first line such as #!/bin/sh" if error.errno == errno.ENOEXEC else ""
        raise CommandNotFound(f"'{command[0]}' cannot be executed: {error.strerror}", hint=hint) from error


def prepare_inheritance(descriptor: int) -> None:
    """Let the child inherit this file, but none of the device files that the driver may have opened in this process.

    Files given to this process, such as a jobserver's pipe, are passed on.
    """
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("/dev/nvidia"):
                os.set_inheritable(int(entry), False)
    os.set_inheritable(descriptor, True)


class OrphanTracker:
    """The living children that this process did not have before. Create it before the command starts."""

    def __init__(self) -> None:
        # If the kernel refuses, other evidence remains: the share's lock and its name in the environment.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._others = frozenset(_children())

    def living(self) -> tuple[Process, ...]:
        """The children alive now, oldest first. Wait for the command itself first."""
        # A look goes from process to process, and may miss one that is reparented behind it.
        return self._look() or self._look()

    def _look(self) -> tuple[Process, ...]:
        return tuple(each for each in _children() if each not in self._others)


def reap_orphans(but: int = 0) -> bool:
    """Reap every child that has ended, except the process `but`; returns whether this process still has a child."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)
        return True
    return False


def _children() -> tuple[Process, ...]:
    # The kernel answers at once when there are none; reading /proc takes longer.
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
_SENT_BY_KERNEL = 0x80  # SI_KERNEL: sent by the terminal, or by the end of a shell


def run_child(
    path: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Callable[[int], None] = lambda pid: None,
    within: AbstractContextManager[None] | None = None,
    starting: Callable[[], None] = lambda: None,
    *,
    held_back: bool = False,
) -> int:
    """Run the command to its end and return its exit code, 128 + N if signal N ended it.

    Passes on the signals that reach this process, unless the terminal also sent them to the child. What stops the child at a
    terminal also stops this process. `started` receives the child's pid; the child is killed if that raises. Raises OSError if
    the file at `path` cannot be executed. The child starts `within` that context. `starting` is called once every further signal
    will reach the child; no child starts if that raises. A child that is `held_back` executes the file only after `started` has
    returned. Call it from the main thread, and without other threads if the child is held back.
    """
    with _signals_collected() as (before, collected):
        starting()
        with within or contextlib.nullcontext():
            if held_back:
                pid, go_on = _fork_held_back(path, command, environment, before)
            else:
                pid, go_on = (
                    os.posix_spawn(
                        path, list(command), dict(environment), setsigmask=before, setsigdef=_IGNORED_BY_PYTHON
                    ),
                    None,
                )
        try:
            started(pid)
            if go_on is not None:
                go_on()
            with _announced(pid, collected):
                _pass_signals_on(pid)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        _, status = os.waitpid(pid, 0)
        # Signals not yet passed on were meant for the child.
        while signal.sigtimedwait(_WATCHED, 0) is not None:
            pass
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def _fork_held_back(
    path: str, command: Sequence[str], environment: Mapping[str, str], mask: Collection[signal.Signals]
) -> tuple[int, Callable[[], None]]:
    """Fork a child that waits, and a function that lets it execute the file; the function raises OSError if it cannot."""
    waiting, go = os.pipe2(os.O_CLOEXEC)
    failed, failing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            if os.read(waiting, 1):
                signal.set_wakeup_fd(-1)
                for number in (*_FORWARDED, signal.SIGCHLD, *_IGNORED_BY_PYTHON):
                    if signal.getsignal(number) is not signal.SIG_IGN or number in _IGNORED_BY_PYTHON:
                        signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                os.execve(path, list(command), dict(environment))
        except OSError as error:
            os.write(failing, bytes([error.errno or 0]))
        finally:
            os._exit(127)
    os.close(waiting)
    os.close(failing)

    def go_on() -> None:
        with open(go, "wb"), open(failed, "rb") as failure:
            os.write(go, b"+")
            if code := failure.read():
                raise OSError(code[0], os.strerror(code[0]))

    return pid, go_on


def _pass_signals_on(pid: int) -> None:
    """Return when the child has ended. It is not reaped, so its pid is still its own."""
    while True:
        info = signal.sigwaitinfo(_WATCHED)
        if info.si_signo == signal.SIGCHLD:
            # SIGCHLD may come from another child, or from one that only stopped.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            reap_orphans(but=pid)
            continue
        note_signal(info.si_signo)
        if info.si_code != _SENT_BY_KERNEL or not _sent_to_both(pid, info.si_signo):
            with contextlib.suppress(PermissionError):  # the command became another user
                os.kill(pid, info.si_signo)


def _sent_to_both(pid: int, number: int) -> bool:
    """Whether the kernel also sent that child what it sent this process.

    The kernel signals process groups, and the child may have left this one. It reports the loss of a terminal to the session
    leader alone.
    """
    if number == signal.SIGHUP and os.getsid(0) == os.getpid():
        return False
    return os.getpgid(pid) == os.getpgrp()


@contextmanager
def _signals_collected() -> Iterator[tuple[set[signal.Signals], int]]:
    """Block the watched signals in this thread; yields the previous mask, and a pipe with those that another thread took."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)}
    # Ignored signals stay ignored, so that nohup works. An ignored SIGCHLD would lose the child's exit code.
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
    """Do nothing: the interpreter has written the signal to the pipe."""


@contextmanager
def _announced(pid: int, collected: int) -> Iterator[None]:
    """Send this thread SIGCHLD when the child has ended, and every signal that another thread took."""
    waiting = threading.get_ident()
    ended = os.pidfd_open(pid)

    def announce(over: int) -> None:
        poll = select.poll()  # select takes no descriptor above 1,023
        for descriptor in (ended, collected, over):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if over in ready:
                return
            if collected in ready:
                for number in os.read(collected, 4096):
                    signal.pthread_kill(waiting, number)
            if ended in ready:
                signal.pthread_kill(waiting, signal.SIGCHLD)
                return

    try:
        with beside("child", announce):
            yield
    finally:
        os.close(ended)


@contextmanager
def beside(name: str, work: Callable[[int], None], patience: float | None = None) -> Iterator[None]:
    """Run `work` in a thread of that name within the block, and wait for it after the block, at most `patience` seconds.

    `work` receives a file descriptor that becomes readable when the block has ended; it must return then.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    thread = threading.Thread(target=work, args=(reading,), name=name, daemon=True)
    with ExitStack() as stack:
        stack.callback(os.close, reading)
        stack.callback(lambda: thread.join(patience) if thread.ident else None)
        stack.callback(os.close, writing)
        # Signals from the terminal are for the command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield
