"""A hundred `tranche run` at once: real processes whose children stay in their slices until they are told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.machines import TestMachine
from tests.support import in_process

_PATIENCE_SECONDS = 150.0
"""Far more than a slow machine needs for one more job to come, wait or end; then a test fails instead of waiting for ever."""

_JOB = """#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES $$" > "$1.starting"
mv "$1.starting" "$1.runs"
read told < "$1.go"
"""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Running:
    """A job in its slice."""

    device: str
    pid: int


@dataclass(slots=True)
class Crowd:
    """Jobs by name; `live` are those in their slices that were not told to end."""

    machine: TestMachine
    folder: Path
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    live: dict[str, Running] = field(default_factory=dict)
    ended: dict[str, Running] = field(default_factory=dict)

    def start(self, names: Iterable[str], *request: str) -> None:
        """Start them all without waiting for any."""
        job = self.folder / "job.sh"
        job.write_text(_JOB)
        job.chmod(0o755)
        environment = self.machine.environment
        for name in names:
            os.mkfifo(self.folder / f"{name}.go")
            with (self.folder / f"{name}.err").open("wb") as errors:
                command = ["run", "-q", *request, "--", str(job), str(self.folder / name)]
                self.processes[name] = in_process.start(command, environment, stderr=errors.fileno())

    def look(self) -> list[str]:
        """The jobs that came to run since the last look; no two live jobs may be in one slice."""
        arrived = []
        for path in self.folder.glob("*.runs"):
            name = path.stem
            if name in self.live or name in self.ended:
                continue
            device, pid = path.read_text().split()
            holder = next((other for other, job in self.live.items() if job.device == device), None)
            assert holder is None, f"{name} was put into {device}, where {holder} still runs"
            self.live[name] = Running(device, int(pid))
            arrived.append(name)
        return arrived

    def await_live(self, count: int) -> None:
        """Return when so many jobs run."""

        def enough() -> bool:
            self.look()
            return len(self.live) >= count

        self.until(enough, lambda: f"{len(self.live)} of {count} run, {len(self.queue())} wait")
        assert len(self.live) == count

    def tell_to_end(self, names: Iterable[str]) -> None:
        """Let jobs end, and return when they have."""
        told = list(names)
        for name in told:
            # The job says that it runs a moment before it listens.
            descriptor = self.until(lambda name=name: self._open(name), lambda name=name: f"{name} does not listen")  # type: ignore[misc]
            self.ended[name] = self.live.pop(name)
            os.write(descriptor, b"end\n")
            os.close(descriptor)

    def _open(self, name: str) -> int | None:
        try:
            return os.open(self.folder / f"{name}.go", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    def queue(self) -> list[str]:
        """The names of the waiting jobs in the ledger's order."""
        return [
            Path(command.split()[-1]).name for command in self._column("SELECT command FROM waiters ORDER BY position")
        ]

    def allocated(self) -> list[str]:
        """The names of the jobs that hold a share."""
        return [Path(command.split()[-1]).name for command in self._column("SELECT command FROM allocations")]

    def _column(self, query: str) -> list[str]:
        with contextlib.closing(sqlite3.connect(self.machine.ledger, timeout=60)) as db:
            return [row[0] for row in db.execute(query)]

    def until(self, what: Callable[[], T | None], explain: Callable[[], str]) -> T:
        """The first true value of `what`; fails when a command fails meanwhile, or nothing has happened for a very long time."""
        before: tuple[int, ...] = ()
        while not (value := what()):
            for name, process in self.processes.items():
                assert process.poll() in (None, 0, -signal.SIGKILL), (self.folder / f"{name}.err").read_text()
            if (now := self._counts()) != before:
                before, deadline = now, time.monotonic() + _PATIENCE_SECONDS
            assert time.monotonic() < deadline, f"{explain()}; nothing has happened for {_PATIENCE_SECONDS:g} s"
            time.sleep(0.02)
        return value

    def _counts(self) -> tuple[int, ...]:
        """How many jobs have come to run, wait, and have ended."""
        waiting = 0
        with contextlib.suppress(sqlite3.OperationalError):  # it is just being made
            waiting = len(self.queue()) if self.machine.ledger.exists() else 0
        exited = sum(process.poll() is not None for process in self.processes.values())
        return len(list(self.folder.glob("*.runs"))), waiting, len(self.ended), exited

    def await_exit(self, names: Iterable[str]) -> list[int]:
        """The exit codes of those commands, when all have ended."""
        waited = [self.processes[name] for name in names]
        self.until(lambda: all(each.poll() is not None for each in waited), lambda: "commands do not end")
        return [each.returncode for each in waited]

    def close(self) -> None:
        """End everything."""
        self.look()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()
        # The jobs of killed commands live on; they end when somebody opens their pipe and goes away.
        for name in self.processes:
            if (descriptor := self._open(name)) is not None:
                os.close(descriptor)
