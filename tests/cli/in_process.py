"""The real command in a fork of the warm interpreter: hundreds of cases in the time that a dozen new processes take."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tranche.cli.main import main
from tranche.core.errors import all_errors

CODES = {0, 1, 141, *(each.exit_code for each in all_errors())}
"""Every exit code that a page describes, but those of signals."""
PEAK_BYTES = 300 * 2**20
_SECONDS = 60.0
PYTHON_WORDS = re.compile(
    r"\b(Key|Type|Value|Attribute|Index|Overflow|UnicodeDecode|JSONDecode)Error\b|has no attribute|codec can't|<class '"
)
"""What no person is told: how Python names what is wrong."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended. `peak` is its largest memory in bytes; `code` is None when it had to be killed."""

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
) -> Outcome:
    """Run `tranche` with these arguments; a stream that is given is used instead of one that is read."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(stdin)
        files[0].seek(0)
        streams = [files[0].fileno(), *(file.fileno() for file in files[1:])]
        streams[1] = streams[1] if stdout is None else stdout
        streams[2] = streams[2] if stderr is None else stderr
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_the_command(arguments, environment, streams)
        code, peak = _wait(pid)
        texts = []
        for file in files[1:]:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Outcome(code, texts[0], texts[1], peak)


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


def _be_the_command(arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> NoReturn:
    code = 99
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        assert sys.__stdout__ is not None
        assert sys.__stderr__ is not None
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        main(arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 99
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _wait(pid: int) -> tuple[int | None, int]:
    watched = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([watched], [], [], _SECONDS)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(status) if ended else None, usage.ru_maxrss * 1024
    finally:
        os.close(watched)
