"""`tranche hold`: a share without a command, until a session ends.

Three processes take part. The caller's process waits for the share. The launcher, forked from it, is `tranche run` in all but
name, and stays in the background. Its command is the holder, a small program that lasts as long as the session.

The holder itself writes the share's variables to the caller's stdout. So whatever is killed at whatever instant, a share is held
only if its variables were written, and they were written only if it is held then.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from tranche.core.allocation import HELD
from tranche.core.errors import UsageError, all_errors
from tranche.local.background import empty, open_files, pass_signals_to
from tranche.local.child import Launch
from tranche.node.processes.processes import ancestors_of, process_at, sudo_above

_HOLDER = r"""# tranche hold: keeps a share until a session ends
import _signal, _socket, posix, select, sys
_signal.signal(_signal.SIGINT, _signal.SIG_DFL)
link, session = map(int, sys.argv[1:])
ended = select.poll()
ended.register(session, select.POLLIN)
caller = _socket.socket(fileno=link)
try:
    caller.send(b"+")
    text, files, _, _ = caller.recvmsg(1 << 20, 64)
except OSError:
    text = b""
if not text or ended.poll(0):
    sys.exit(129)
out = int.from_bytes(files[0][2], sys.byteorder)
failed = 0
while text:
    try:
        text = text[posix.write(out, text):]
    except BlockingIOError:
        full = select.poll()
        full.register(out, select.POLLOUT)
        full.poll()
    except OSError as error:
        failed, text = error.errno, b""
posix.close(out)
try:
    caller.send(bytes([failed]))
except OSError:
    pass
caller.close()
if failed:
    sys.exit(1)
ended.poll()
"""
"""Holds the share. It imports no more than it must: it stays in memory. Anyone may run it who may run Python."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def hold(run: Callable[[Sequence[str], Launch], int], text_of: Callable[[Mapping[str, str]], str], told: int) -> int:
    """Get a share that lasts as long as this session, write its variables to the file `told`, and return an exit code.

    `run` is `tranche run`. This returns twice: in the caller's process when the share is held, or there is none, and in the
    launcher when the share has ended. Raises UsageError if no session would end it, and in the caller's process OSError if the
    variables cannot be written: the share is given back then. Raises the launcher's error, in other words, if that came after the
    grant and before the holder ran.
    """
    session = os.pidfd_open(session_end())
    inherited = open_files()
    here, there = socket.socketpair()
    caller, launcher = os.getpid(), os.fork()
    if launcher == 0:
        here.close()
        _end_with(caller)
        empty(1)
        for each in (session, there.fileno()):
            os.set_inheritable(each, True)
        line = (sys.executable, "-I", "-S", "-c", _HOLDER, str(there.fileno()), str(session))
        return run(line, Launch(HELD, partial(_part_from_caller, there, inherited - {session})))
    there.close()
    pass_signals_to(launcher)
    parted, variables = _variables(here, session, launcher)
    answer = b""
    if variables is not None:
        text = os.fsencode(text_of(variables))
        with suppress(OSError):  # the holder was killed
            socket.send_fds(here, [text], [told])
            answer = here.recv(1)
    if answer == b"\0":
        return 0
    here.close()
    _, status = os.waitpid(launcher, 0)
    if answer:
        raise OSError(answer[0], os.strerror(answer[0]))
    code = os.waitstatus_to_exitcode(status)
    kind = next((each for each in all_errors() if each.exit_code == code), None)
    if parted and variables is None and kind is not None and not os.isatty(2):  # the launcher could not say it
        raise kind("the share was lost before this session received it", hint="run the command again")
    return code if code >= 0 else 128 - code


def session_end() -> int:
    """The process whose end ends a hold of this one: the leader of its session.

    If SIGHUP is ignored, as under nohup, or the leader has ended, it is the process of the session that all this came of, such as
    a script. sudo may run a command in a session of its own, which ends with the command: the session meant is that of sudo.
    UsageError if that is this process itself, or nobody.
    """
    sudo = sudo_above(os.getpid())
    start = sudo[-1] if sudo else os.getpid()
    leader = os.getsid(start)
    above = [pid for pid in ancestors_of(start) if pid != leader and _session(pid) == leader]
    leads = leader not in (0, start) and process_at(leader) is not None
    if above and (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or not leads):
        return above[-1]
    if not leads:
        raise UsageError(
            "this command is the only one in its session, so the share would end with it",
            hint="run it in a shell that stays open, or run the program itself in a share: tranche run REQUEST -- PROGRAM",
        )
    return leader


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _end_with(caller: int) -> None:
    """Have the kernel send SIGTERM when the caller's process ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != caller:
        os._exit(128 + signal.SIGTERM)


def _part_from_caller(link: socket.socket, inherited: Collection[int], variables: Mapping[str, str]) -> None:
    """Go on in the background, in a session of its own, and tell the caller's process the share's variables.

    Nothing that was given to the caller stays open, or who waits for its end would wait for this one. A terminal may still be
    told of the time limit.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    os.setsid()
    empty(0, *(() if os.isatty(2) else (2,)))
    for each in inherited:
        with suppress(OSError):
            os.close(each)
    with suppress(OSError):  # the caller's process was killed, which the holder finds out, too
        link.sendall(json.dumps(dict(variables)).encode() + b"\n")


def _variables(link: socket.socket, session: int, launcher: int) -> tuple[bool, Mapping[str, str] | None]:
    """Whether the launcher parted from the caller, and the share's variables if the holder runs then.

    The end of the session ends the launcher: without a terminal, no signal tells this process of it.
    """
    received = b""
    news = select.poll()
    for each in (link.fileno(), session):
        news.register(each, select.POLLIN)
    while not received.endswith(b"\n+"):
        if any(each == session for each, _ in news.poll()):
            news.unregister(session)
            os.kill(launcher, signal.SIGTERM)
            continue
        chunk = link.recv(1 << 16)
        if not chunk:
            return bool(received), None
        received += chunk
    found: dict[str, str] = json.loads(received[:-1])
    return True, found
