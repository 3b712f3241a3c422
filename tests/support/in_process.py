"""The real command in a fork of the warm interpreter: hundreds of cases in the time that a dozen new processes take."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import logging
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from tests.grpc_use import keep_grpc_out_of_this_process
from tranche.cli.main import main, root
from tranche.core.errors import all_errors
from tranche_simulator.recipe import NVML_SONAME

CODES = {0, 1, 141, *(each.exit_code for each in all_errors())}
"""Every exit code that a page describes, but those of signals."""
PEAK_BYTES = 300 * 2**20
NOBODY = 50_000 + os.getpid() % 10_000
"""A user whom no other test process is: what others start at the same time did not come of a command of this one."""
TRANCHE = (sys.executable, "-c", "from tranche.cli.main import main; main()")
"""The command line of the command in a new interpreter."""
DROP = """
import contextvars, ctypes.util, difflib, fractions, os, tomllib, pwd, shutil, sys, traceback
import tranche.cli.detached, tranche.cli.doctor, tranche.cli.explain, tranche.cli.hold, tranche.cli.job, tranche.cli.ps
import tranche.cli.release, tranche.cli.run, tranche.core.printable, tranche.core.spelling
import tranche.documents.envelope, tranche.hardware.nvml, tranche.local.client, tranche.node.host
import tranche.node.state.register_place, tranche.node.store.ledger
uid = int(sys.argv.pop(1))
os.setgroups([]); os.setgid(uid); os.setuid(uid)
from tranche.cli.main import main
main()
"""
"""Not every machine lets users read the files of root's Python, so the command imports what it needs before it drops root."""
_PROCESS = os.getpid()
_SECONDS = 60.0
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
PYTHON_WORDS = re.compile(
    r"\b(Key|Type|Value|Attribute|Index|Overflow|UnicodeDecode|JSONDecode)Error\b|has no attribute|codec can't|<class '"
)
"""What no person is told: how Python names what is wrong."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended. `peak` is how much memory it took at most, in bytes; `code` is None when it had to be killed."""

    code: int | None
    stdout: str
    stderr: str
    peak: int

    @property
    def fault(self) -> str:
        """What is wrong with it whatever was asked; empty when nothing is."""
        if self.code is None:
            return "it hung"
        if self.code not in CODES:
            return f"exit code {self.code}"
        if "Traceback" in self.stderr or "Exception ignored" in self.stderr:
            return "a traceback"
        if found := PYTHON_WORDS.search(self.stderr):
            return f"Python's own words: {found[0]}"
        if self.peak > PEAK_BYTES:
            return f"{self.peak // 2**20} MiB of memory"
        return ""


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: bytes = b"",
    stdout: int | None = None,
    stderr: int | None = None,
    seconds: float = _SECONDS,
    user: int | None = None,
) -> Outcome:
    """Run `tranche` with these arguments; a stream that is given is used instead of one that is read.

    NVML is looked for in LD_LIBRARY_PATH, which the dynamic linker reads at a program's start alone. What the command starts
    must let go of its streams, or the command counts as hung.
    """
    _import_commands()
    with contextlib.ExitStack() as stack:
        source = os.memfd_create("stdin")
        stack.callback(os.close, source)
        os.write(source, stdin)
        os.lseek(source, 0, os.SEEK_SET)
        readers, writers = [], []
        for _ in range(2):
            reading, writing = os.pipe()
            stack.callback(os.close, reading)
            readers.append(reading)
            writers.append(writing)
        streams = [source, writers[0] if stdout is None else stdout, writers[1] if stderr is None else stderr]
        sys.stdout.flush()
        sys.stderr.flush()
        resident = _resident()
        pid = os.fork()
        if pid == 0:
            _be_the_command(arguments, environment, streams, user)
        for writing in writers:
            os.close(writing)
        deadline = time.monotonic() + seconds
        texts = _read(readers, deadline)
        code, peak = _wait(pid, deadline)
        grown = max(0, peak - resident)
        return Outcome(code if all(ended for _, ended in texts) else None, texts[0][0], texts[1][0], grown)


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    anew: bool = False,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    user: int | None = None,
) -> subprocess.Popen[str]:
    """Start `tranche`, which goes on: in a fork, or `anew` in an interpreter of its own, which takes a fifth of a second more.

    The folder of another `user` is /, since the user may not see this process's own.
    """
    instead, program = None, [*TRANCHE, *arguments]
    if may_fork() and not anew:
        _import_commands()
        instead = functools.partial(_be_the_command, arguments, environment, (), user)
    elif user is not None:
        program = [sys.executable, "-c", DROP, str(user), *arguments]
    return _popen(program, environment, instead, stdin, stdout, stderr, None if user is None else "/")


@contextlib.contextmanager
def held_back(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """The same for a test that starts threads first: forked at once, the command begins with the call of what this gives."""
    if not may_fork():
        yield functools.partial(start, arguments, environment, anew=True)
        return
    _import_commands()
    reading, writing = os.pipe()
    try:
        process = _popen(
            [*TRANCHE, *arguments], environment, functools.partial(_wait_and_be, reading, arguments, environment)
        )
    finally:
        os.close(reading)

    def begin() -> subprocess.Popen[str]:
        os.write(writing, b".")
        return process

    try:
        yield begin
    finally:
        os.close(writing)
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def may_fork() -> bool:
    """Whether a fork of this process can be a command: it would wait for what other threads hold, gRPC's included."""
    return os.getpid() == _PROCESS and threading.active_count() == 1  # an isolated test may use gRPC


def run_anew(arguments: Sequence[str], environment: Mapping[str, str], *, seconds: float = _SECONDS) -> Outcome:
    """The same in a new interpreter, for a process with threads, such as a browser's: what they hold a fork would wait for."""
    try:
        done = subprocess.run(
            [*TRANCHE, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Outcome(None, (error.stdout or b"").decode(), (error.stderr or b"").decode(), 0)
    return Outcome(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), 0)


@contextlib.contextmanager
def unwritable(how: str) -> Iterator[int]:
    """A descriptor that cannot be written: `full`, `closed`, or without a `reader`."""
    if how == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    elif how == "closed":
        descriptor = os.open(os.devnull, os.O_RDONLY)
    else:
        reading, descriptor = os.pipe()
        os.close(reading)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@functools.cache
def _import_commands() -> None:
    """Import every command once: who becomes another user may not be able to read the interpreter's files."""
    context = click.Context(root)
    for name in root.list_commands(context):
        root.get_command(context, name)
    keep_grpc_out_of_this_process()


def _popen(
    program: Sequence[str],
    environment: Mapping[str, str],
    instead: Callable[[], NoReturn] | None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    folder: str | None = None,
) -> subprocess.Popen[str]:
    """A process that loads an interpreter, or does something else `instead`."""
    return subprocess.Popen(
        program,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        cwd=folder,
        preexec_fn=instead,
    )


def _wait_and_be(told: int, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Wait for a byte, and end without one. `subprocess` waits for the end of another pipe, so that is closed first."""
    os.closerange(3, told)
    os.closerange(told + 1, os.sysconf("SC_OPEN_MAX"))
    if not os.read(told, 1):
        os._exit(0)
    _be_the_command(arguments, environment, (), None)


def _be_the_command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    user: int | None,
) -> NoReturn:
    code = 99
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        signal.set_wakeup_fd(-1)
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_IGN)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *_IGNORED_BY_PYTHON}:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        logging.getLogger().handlers.clear()  # pytest's own, whose files are closed next
        gc.freeze()  # an object that the tests left in a cycle would close its file's number again, which a lock has by then
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        assert sys.__stdout__ is not None
        assert sys.__stderr__ is not None
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep):
            if (library := Path(folder, NVML_SONAME)).is_file():
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        main(arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 99
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _resident() -> int:
    """The memory of this process in bytes, with which a fork begins; that of one that has run many tests is large."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _read(readers: Sequence[int], deadline: float) -> list[tuple[str, bool]]:
    """What comes out of each pipe until the deadline, and whether that was its end."""
    found = dict.fromkeys(readers, b"")
    open_pipes = set(readers)
    with selectors.DefaultSelector() as waiting:
        for reading in readers:
            waiting.register(reading, selectors.EVENT_READ)
        while open_pipes and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                if data := os.read(key.fd, 65536):
                    found[key.fd] += data
                else:
                    waiting.unregister(key.fd)
                    open_pipes.discard(key.fd)
    return [(found[reading].decode(errors="replace"), reading not in open_pipes) for reading in readers]


def _wait(pid: int, deadline: float) -> tuple[int | None, int]:
    watched = os.pidfd_open(pid)
    try:
        with selectors.DefaultSelector() as waiting:
            waiting.register(watched, selectors.EVENT_READ)
            ended = waiting.select(max(0.0, deadline - time.monotonic()))
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(status) if ended else None, usage.ru_maxrss * 1024
    finally:
        os.close(watched)
