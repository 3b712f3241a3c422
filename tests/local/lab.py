"""A lab: users who run, hold and detach commands through the service, and somebody who kills, stops and restarts at random."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.local import lab_accounts
from tests.local.lab_observer import lines_of, started, state_of
from tests.local.sessions import READABLE_PYTHON
from tests.machines import TestMachine, wait_until
from tests.support import in_process
from tests.support.in_process import PYTHON_WORDS
from tranche.core.errors import (
    AllocationUnknown,
    CommandNotFound,
    GpuBusy,
    NoRoom,
    PermissionDenied,
    ProfileUnknown,
    QuotaExceeded,
    ServiceUnavailable,
    TooManyGpus,
    UsageError,
    WaitTimeout,
)
from tranche_simulator.build import ensure_built

_JOB = """#!/bin/sh
echo "begin $$ $TRANCHE_ALLOCATION" > "$1"
if [ -n "$TRANCHE_PARTS" ]; then sleep "$2"; else "$4" "$2" 64 < /dev/null; fi
code=$?
[ $code -gt 128 ] && exit $code
[ $code = 0 ] || exit 98
echo end >> "$1"
exit "$3"
"""
"""Says that it has begun, uses its devices, says that it has come to its end, and exits as it was told."""

_CODES = (0, 0, 0, 91, 92, 93)
"""Those of commands. No refusal has any of them but 0, which would be a lie without a command."""
_PROGRAM_ENDED = 94
"""The exit code of a session in which a signal ended a program."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REFUSED: Sequence[tuple[tuple[str, ...], int]] = (
    (("--mig-profile", "9g.90gb"), ProfileUnknown.exit_code),
    (("--gpus", "100"), TooManyGpus.exit_code),
    (("--gpu", "2"), UsageError.exit_code),
    (("--mig-profile", "1c.2g.20gb"), UsageError.exit_code),
    (("--gpus", "3"), QuotaExceeded.exit_code),
    (("--adopt-foreign=destroy", "--gpu", "0.1"), PermissionDenied.exit_code),
)
_PATIENCE_SECONDS = 150.0
"""Far longer than any command: after so long without an end, a request is lost."""


@dataclass
class Run:
    """One request of a user. `code` is its command's; `also` are the exit codes that what was done to it may bring."""

    name: str
    uid: int
    process: subprocess.Popen[str]
    kind: str
    code: int
    told: Path
    asked: float
    also: set[int] = field(default_factory=set)
    lost: bool = False
    """Whether it was killed, so that it has no exit code."""
    stopped: float = 0.0

    @property
    def command(self) -> tuple[int, str] | None:
        """The pid and the share of its command, once that has begun."""
        words = next(iter(lines_of(self.told)), "").split()
        return (int(words[1]), words[2]) if len(words) == 3 else None


@dataclass
class Lab:
    """`crowd` is how many requests there are at once. `hurt` is how often something is done to somebody, per request."""

    machine: TestMachine
    rng: random.Random
    first: int
    count: int
    crowd: int
    hurt: float
    requests: Sequence[tuple[str, ...]]
    alarm: Path
    seconds: float = 0.6
    runs: list[Run] = field(default_factory=list)
    helpers: list[tuple[str, subprocess.Popen[str], Path, set[int]]] = field(default_factory=list)
    jobs: list[Run] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    service: subprocess.Popen[str] | None = None
    workers: set[tuple[int, int]] = field(default_factory=set)
    down_since: float = 0.0
    up_at: float = 0.0
    moved: float = field(default_factory=time.monotonic)
    last_kill: float = 0.0
    """When the service or a request's process was killed last: a request that had not begun then may be lost."""
    asked: int = 0

    def __post_init__(self) -> None:
        self.folder = self.machine.folder / "lab"
        self.folder.mkdir()
        self.folder.chmod(0o1777)
        self.job = self.folder / "job.sh"
        self.job.write_text(_JOB)
        self.job.chmod(0o755)
        self.program = ensure_built(self.machine.cache).job
        self.environment = {**self.machine.environment, lab_accounts.FIRST: str(self.first), "HOME": "/"}
        self.machine.tranche("--version")  # a session imports nothing: its user cannot read root's files
        for uid in self.users:
            home = self.folder / str(uid)
            home.mkdir()
            os.chown(home, uid, uid)

    @property
    def users(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def log(self) -> Path:
        return self.machine.folder / "service.log"

    # The service, and root's commands.

    def _as_root(self, *arguments: str) -> list[str]:
        return [sys.executable, lab_accounts.__file__, *arguments]

    def order(self, *arguments: str) -> str:
        """A command of root."""
        done = subprocess.run(
            self._as_root(*arguments), env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, command: Sequence[str] = ()) -> None:
        """Start the service, and return when it listens."""
        before = self.served
        with self.log.open("a") as log:
            self.service = subprocess.Popen(
                command or self._as_root("serve"), env=self.environment, stderr=log, stdin=subprocess.DEVNULL, text=True
            )
        wait_until(lambda: self.served > before, self.service)

    @property
    def served(self) -> int:
        return sum(line.startswith("tranche: serving") for line in lines_of(self.log))

    def kill_service(self) -> None:
        """Kill it at this instant, and let another one start a little later."""
        if self.service is None or self.down_since:
            return
        self._note_workers()
        if self.rng.random() < 0.75:
            self.service.kill()
            self.service.wait()
        else:
            self.service.send_signal(self.rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
            if self.service.wait(60) != 0:
                self.wrong.append(f"the service ended with {self.service.returncode}")
        self.done["ended service"] += 1
        self.down_since = self.last_kill = time.monotonic()
        self.up_at = self.down_since + self.rng.choice([0.0, 0.0, 0.2, 1.0])

    def _serve_again(self) -> None:
        if self.down_since and time.monotonic() >= self.up_at:
            self.serve()
            self.down_since, self.last_kill = 0.0, time.monotonic()

    def _note_workers(self) -> None:
        assert self.service is not None
        text = " ".join(lines_of(Path(f"/proc/{self.service.pid}/task/{self.service.pid}/children")))
        self.workers = {each for each in self.workers if started(each[0]) == each[1]}
        self.workers |= {(int(pid), started(int(pid))) for pid in text.split()}

    # What users do.

    def _new(self, kind: str) -> tuple[str, Path, Path]:
        self.asked += 1
        self.done[kind] += 1
        name = f"{kind}-{self.asked}"
        return name, self.folder / f"{name}.ran", self.folder / f"{name}.err"

    def _job(self, told: Path, code: int) -> list[str]:
        seconds = f"{self.rng.uniform(0.0, 2 * self.seconds):.2f}"
        return [str(self.job), str(told), seconds, str(code), str(self.program)]

    def _start(self, arguments: Sequence[str], errors: Path, uid: int | None, **more: str) -> subprocess.Popen[str]:
        with errors.open("wb") as file:
            return in_process.start(arguments, {**self.environment, **more}, stderr=file.fileno(), user=uid)

    def burst(self) -> None:
        """A user asks for the same several times, as in a sweep of parameters."""
        uid, request = self.rng.choice(self.users), self.rng.choice(self.requests)
        options: list[str] = []
        also: set[int] = set()
        match self.rng.randrange(10):
            case 0:
                options, also = ["--no-wait"], {NoRoom.exit_code}
            case 1:
                options, also = ["--timeout", f"{self.rng.uniform(0.05, 3):.2f}"], {WaitTimeout.exit_code}
            case 2 | 3:
                options = ["--time", "1h"]
            case 4:
                options, also = ["--time", "1s"], {128 + signal.SIGTERM, 128 + signal.SIGKILL}
            case 5 | 6:
                options, also = ["--preemptible"], {128 + signal.SIGTERM, 128 + signal.SIGKILL}
            case _:
                pass
        for _ in range(self.rng.choice([1, 1, 2, 3, 6])):
            self._ask(uid, request, options, also)
            if self.rng.random() < 0.02:
                self.kill_service()

    def _ask(self, uid: int, request: Sequence[str], options: Sequence[str] = (), also: Iterable[int] = ()) -> None:
        code = self.rng.choice(_CODES)
        name, told, errors = self._new("run")
        process = self._start(["run", *request, *options, "--", *self._job(told, code)], errors, uid)
        self.runs.append(Run(name, uid, process, "run", code, told, time.monotonic(), set(also)))

    def ask_for_too_much(self) -> None:
        """A request that is refused, whoever asks."""
        uid, (request, code) = self.rng.choice(self.users), self.rng.choice([*_REFUSED, (("--gpus", "1"), 127)])
        command = ["no-such-command"] if code == CommandNotFound.exit_code else ["true"]
        self._help("refused", uid, {code}, "run", *request, "--", *command)

    def detach(self) -> None:
        uid, request, code = self.rng.choice(self.users), self.rng.choice(self.requests), self.rng.choice(_CODES)
        name, told, errors = self._new("detach")
        arguments = ["run", "--detach", "--name", name, *request, "--", *self._job(told, code)]
        process = self._start(arguments, errors, uid, XDG_STATE_HOME=str(self.folder / str(uid)))
        self.runs.append(Run(name, uid, process, "detach", code, told, time.monotonic()))

    def state(self, job: Run) -> Path:
        """Where a detached run keeps its state."""
        return self.folder / str(job.uid) / "tranche" / "jobs" / os.uname().nodename / job.name / "state.json"

    def log_in(self) -> None:
        """A session that holds a share, and runs programs in it."""
        uid, request = self.rng.choice(self.users), self.rng.choice(self.requests)
        name, told, errors = self._new("hold")
        programs = [self._job(told, 0) for _ in range(self.rng.choice([1, 1, 2]))]

        def live() -> None:
            try:
                self._be_session(uid, errors, ["hold", *request, "-o", "json"], programs)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(97)

        process = subprocess.Popen(["session"], preexec_fn=live, start_new_session=True, text=True)
        self.runs.append(Run(name, uid, process, "hold", 0, told, time.monotonic()))

    def _be_session(self, uid: int, errors: Path, arguments: Sequence[str], programs: Sequence[Sequence[str]]) -> None:
        """In a process that leads a session of that user: hold a share, run the programs beside each other, and end."""
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        assert READABLE_PYTHON is not None
        sys.executable = READABLE_PYTHON
        outcome = in_process.run(arguments, self.environment, seconds=600)
        os.write(2, outcome.stderr.encode())
        if outcome.code != 0:
            os._exit(99 if outcome.code is None else outcome.code)
        variables = {**self.environment, **json.loads(outcome.stdout)["environment"]}
        pids = [os.posix_spawn(each[0], list(each), variables) for each in programs]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        os._exit(98 if 98 in codes else _PROGRAM_ENDED if any(codes) else 0)

    def look(self) -> None:
        """Somebody lists, or asks why, or wants more time."""
        uid = self.rng.choice(self.users)
        begun = [each for each in self.runs if each.command is not None]
        match self.rng.randrange(3):
            case 0:
                self._help("ps", uid, {0}, "ps", "-o", "json")
            case 1:
                self._help("explain", uid, {0}, "explain", *self.rng.choice(self.requests))
            case 2 if begun:
                run = self.rng.choice(begun)
                assert run.command is not None
                may = {0, UsageError.exit_code, AllocationUnknown.exit_code, NoRoom.exit_code}
                self._help("extend", run.uid, may, "extend", run.command[1], "1m")
            case _:
                pass

    def _help(self, kind: str, uid: int | None, codes: set[int], *arguments: str) -> None:
        self.done[kind] += 1
        errors = self.folder / f"{kind}-{sum(self.done.values())}.err"
        self.helpers.append((kind, self._start(arguments, errors, uid), errors, codes))

    # What is done to them.

    def harm(self) -> None:
        """One of the things that happen."""
        acts: list[tuple[Callable[[], None], int]] = [
            (self._interrupt, 3),
            (self._kill_client, 3),
            (self._kill_command, 3),
            (self._kill_worker, 3),
            (self._stop, 2),
            (self._log_out, 2),
            (self._release, 3),
            (self._stop_service, 1),
        ]
        self.rng.choices([act for act, _ in acts], [often for _, often in acts])[0]()

    def _living(self, *kinds: str) -> Run | None:
        found = [each for each in self.runs if each.kind in kinds and each.process.poll() is None]
        return self.rng.choice(found) if found else None

    def _interrupt(self) -> None:
        if (run := self._living("run", "detach")) is not None:
            spoken = run.command is not None or (self.folder / f"{run.name}.err").stat().st_size > 0
            number = self.rng.choice(_SIGNALS) if spoken else signal.SIGTERM  # Python itself answers an earlier SIGINT
            run.also |= {128 + number, -number}  # the latter before it heeds signals
            run.process.send_signal(number)
            self.done["interrupted"] += 1

    def _kill_client(self) -> None:
        if (run := self._living("run", "detach", "hold")) is not None:
            run.lost = True
            run.process.kill()
            self.done["killed client"] += 1

    def _kill_command(self) -> None:
        """A command, or a program of a session, or a detached run with or without its command."""
        if self.jobs and self.rng.random() < 0.3:
            job = self.rng.choice(self.jobs)
            pid = state_of(self.state(job)).get("pid", 0)
            if pid and _is_of(pid, job.uid):
                job.lost = True
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.done["killed client"] += 1
            return
        begun = [each for each in (*self.runs, *self.jobs) if each.command is not None]
        if begun:
            run = self.rng.choice(begun)
            assert run.command is not None
            number = self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            if _is_of(run.command[0], run.uid):
                run.also |= {128 + number, _PROGRAM_ENDED}
                with suppress(ProcessLookupError):
                    os.kill(run.command[0], number)
                self.done["killed command"] += 1

    def _kill_worker(self) -> None:
        if self.service is None or self.down_since:
            return
        self._note_workers()
        if self.workers:
            pid, begun = self.rng.choice(sorted(self.workers))
            if started(pid) == begun:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.last_kill = time.monotonic()
                self.done["killed worker"] += 1

    def _stop(self) -> None:
        if (run := self._living("run")) is not None and not run.stopped:
            run.process.send_signal(signal.SIGSTOP)
            run.stopped = time.monotonic() + self.rng.uniform(0.0, 2.0)
            self.done["stopped"] += 1

    def _go_on(self, *, all_of_them: bool = False) -> None:
        for run in self.runs:
            if run.stopped and (all_of_them or time.monotonic() >= run.stopped):
                run.stopped = 0.0
                if not all_of_them and self.rng.random() < 0.3:
                    run.lost = True
                    run.process.kill()
                    self.done["killed client"] += 1
                run.process.send_signal(signal.SIGCONT)

    def _log_out(self) -> None:
        if (run := self._living("hold")) is not None:
            run.lost = True
            with suppress(ProcessLookupError):
                os.killpg(run.process.pid, signal.SIGHUP)
            self.done["logged out"] += 1

    def _release(self) -> None:
        """The user, a stranger or root takes a share back."""
        begun = [each for each in (*self.runs, *self.jobs) if each.command is not None]
        if not begun:
            return
        run = self.rng.choice(begun)
        assert run.command is not None
        arguments = ("release", run.command[1], "--terminate", "--grace", "1s")
        gone = {AllocationUnknown.exit_code}
        if self.rng.random() < 0.3:
            stranger = self.first + (run.uid - self.first + 1) % self.count
            # A share whose command has ended is released already: nobody is hurt.
            self._help("foreign release", stranger, {0, PermissionDenied.exit_code, *gone}, *arguments)
            return
        run.also |= {128 + signal.SIGTERM, 128 + signal.SIGKILL, _PROGRAM_ENDED}
        self._help("release", self.rng.choice([run.uid, None]), {0, GpuBusy.exit_code, *gone}, *arguments)

    def _stop_service(self) -> None:
        if self.service is not None and not self.down_since:
            self.service.send_signal(signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.0, 0.3))
            self.service.send_signal(signal.SIGCONT)
            self.done["stopped service"] += 1

    # The whole.

    def live(self, requests: int, restarts: int) -> None:
        """So many requests, with so many ends of the service among them; returns when everything has ended."""
        killed_at = sorted(self.rng.randrange(requests) for _ in range(restarts))
        try:
            while self.asked < requests and not self.bad:
                while killed_at and self.asked >= killed_at[0]:
                    killed_at.pop(0)
                    self.kill_service()
                if len(self.runs) < self.crowd and (not self.down_since or self.rng.random() < 0.05):
                    before = self.asked
                    self.rng.choices(
                        [self.burst, self.detach, self.log_in, self.ask_for_too_much, self.look], [8, 2, 2, 1, 2]
                    )[0]()
                    for _ in range(max(1, self.asked - before)):
                        if self.rng.random() < self.hurt:
                            self.harm()
                self._move_on()
            self.finish()
        except BaseException as error:
            error.add_note(self.said())
            raise

    def keep_busy(self, users: Sequence[int], requests: int, at_once: int) -> None:
        """Let each of these users always have so many requests, until so many were made."""
        while self.asked < requests and not self.bad:
            for uid in users:
                if sum(each.uid == uid for each in self.runs) < at_once:
                    self._ask(uid, self.rng.choice(self.requests))
            self._move_on()

    @property
    def bad(self) -> bool:
        return bool(self.wrong) or self.alarm.exists()

    def _move_on(self) -> None:
        self._serve_again()
        self._go_on()
        left = self._left
        self._reap()
        if self._left < left or not left:
            self.moved = time.monotonic()
        if time.monotonic() > self.moved + _PATIENCE_SECONDS:
            self.wrong.append(f"nothing has ended for {_PATIENCE_SECONDS} s: {self.runs} {self.helpers} {self.jobs}")
        time.sleep(0.005 if len(self.runs) < self.crowd else 0.02)

    @property
    def _left(self) -> int:
        return len(self.runs) + len(self.helpers) + len(self.jobs)

    def finish(self) -> None:
        """Let everything come to its end."""
        self._go_on(all_of_them=True)
        while (self._left or self.down_since) and not self.bad:
            self._move_on()

    def _reap(self) -> None:
        for run in [each for each in self.runs if each.process.poll() is not None]:
            self.runs.remove(run)
            if run.kind == "detach" and run.process.returncode == 0:
                self.jobs.append(run)
            else:
                self._check(run, run.process.returncode)
        for job in list(self.jobs):
            self._check_job(job)
        for helper in [each for each in self.helpers if each[1].poll() is not None]:
            self.helpers.remove(helper)
            kind, process, errors, codes = helper
            # Without a service, or if it ends just now, a user gets nothing at all.
            self._check_words(kind, process.returncode, errors, {*codes, ServiceUnavailable.exit_code})

    def _check_job(self, job: Run) -> None:
        state = state_of(self.state(job))
        if state.get("exit_code") is not None:
            self.jobs.remove(job)
            shutil.copyfile(self.state(job).with_name("log"), self.folder / f"{job.name}.err")
            self._check(job, state["exit_code"])
            shutil.rmtree(self.state(job).parent, ignore_errors=True)
        elif state and not _is_of(state["pid"], job.uid) and state_of(self.state(job)).get("exit_code") is None:
            self.jobs.remove(job)
            if not job.lost:
                self.wrong.append(f"{job.name}: its process is gone, and it has no exit code: {state}")

    def _check(self, run: Run, code: int) -> None:
        """What the user of that request is told is true."""
        lines = lines_of(run.told)
        self.codes[code] += 1
        errors = self.folder / f"{run.name}.err"
        may = set(run.also)
        if run.lost:
            may.add(code)
        if lines:
            may.add(run.code)
        elif run.asked <= self.last_kill or self.down_since:
            may.add(ServiceUnavailable.exit_code)
        if lines:
            may -= {-number for number in _SIGNALS}
        if code == run.code and not run.lost and run.kind != "hold" and lines[1:] != ["end"]:
            self.wrong.append(f"{run.name}: exit code {code}, but its command did not come to its end: {lines}")
        if lines[1:] != ["end"] and len(lines) == 1 and not run.lost and not run.also:
            self.wrong.append(f"{run.name}: something ended its command, exit code {code}")
        self._check_words(run.name, code, errors, may)
        if not self.wrong:
            run.told.unlink(missing_ok=True)

    def _check_words(self, name: str, code: int, errors: Path, may: set[int]) -> None:
        text = "\n".join(lines_of(errors))
        if code not in may:
            self.wrong.append(f"{name}: exit code {code} is none of {sorted(may)}: {text}")
        if "Traceback" in text or "Exception ignored" in text or PYTHON_WORDS.search(text):
            self.wrong.append(f"{name}: {text}")
        if code in (2, 22, 30, 31, 32, 34, 63, 70, 80, 127) and "error: " not in text and '"kind": "Error"' not in text:
            self.wrong.append(f"{name}: exit code {code} without a reason: {text}")
        if not self.wrong:
            errors.unlink(missing_ok=True)

    def said(self) -> str:
        """What was done, for people."""
        did = ", ".join(f"{count} {name}" for name, count in sorted(self.done.items()))
        failed = [each for each in lines_of(self.log) if "the process failed" in each or "process ended with 1" in each]
        return "\n".join((f"{self.asked} requests; {did}; exit codes {dict(sorted(self.codes.items()))}", *failed))

    def end(self) -> None:
        """End whatever is still there."""
        for run in (*self.runs, *self.jobs):
            with suppress(ProcessLookupError):
                run.process.kill()
        for _, process, _, _ in self.helpers:
            process.kill()
        if self.service is not None:
            self.service.kill()
        for process in (*(each.process for each in self.runs), *(each[1] for each in self.helpers)):
            process.wait()
        if self.service is not None:
            self.service.wait()


def _is_of(pid: int, uid: int) -> bool:
    """Whether a living process of that pid is the user's."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return started(pid) != 0 and int(next(each for each in lines if each.startswith("Uid:")).split()[1]) == uid
    return False
