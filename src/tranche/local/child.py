"""A child process run to its end: signals passed on, the exit code as a shell gives it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_SENT_BY_KERNEL = 0x80  # SI_KERNEL: the terminal sent it, and to the child as well


def run_child(
    path: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Callable[[int], None] = lambda pid: None,
) -> int:
    """Run the command to its end and return its exit code, 128 + N when signal N ended it.

    Signals that reach this process are passed on; those of the terminal reach the child anyway. `started` is told the
    child's pid; the child is killed when that raises. OSError when the file at `path` cannot be executed.
    """
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        pid = os.posix_spawn(path, list(command), dict(environment), setsigmask=before, setsigdef=_IGNORED_BY_PYTHON)
        try:
            started(pid)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        while True:
            # A child that ended before this loop left SIGCHLD pending, so nothing is missed.
            info = signal.sigwaitinfo(watched)
            if info.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended == pid:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
            elif info.si_code != _SENT_BY_KERNEL:
                with contextlib.suppress(PermissionError):  # the command became another user
                    os.kill(pid, info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
