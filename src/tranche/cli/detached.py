"""`tranche run --detach`, and `tranche job` for this user's detached runs on this machine."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click

from tranche.cli.output import fail, pause, print_json, print_table, say, show
from tranche.cli.runtime import Settings, open_host, register_places, socket_of_service
from tranche.core.errors import (
    AllocationUnknown,
    JobFailed,
    OutputUnwritable,
    ServiceUnavailable,
    TrancheError,
    UsageError,
    WaitTimeout,
)
from tranche.core.request import parse_request
from tranche.documents import describe
from tranche.kubernetes.jobs.manifest import name_from
from tranche.local.background import empty, open_files, pass_signals_to
from tranche.local.child import Launch, command_text
from tranche.local.jobs import JobLaunch, JobStore, MachineJob, job_document, open_jobs
from tranche.local.termination import take_back
from tranche.node.locks.interrupts import told_to_end
from tranche.node.processes.processes import MARK
from tranche.node.state.connection import connect
from tranche.node.state.session import process_stopped

_COLUMNS = ("NAME", "REQUEST", "STATUS", "EXIT", "AGE", "COMMAND")
_NOT_OF_THE_REQUEST = frozenset({"wait", "timeout", "adopt_foreign", "record", "cdi", "quiet"})
_GRACE_SECONDS = 30.0
_POLL_SECONDS = 0.2
_ROOM_SECONDS = 5.0
_LONGEST_NAME = 63
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_LONGEST_NAME - 1}}}", re.ASCII)


def run_detached(
    settings: Settings,
    command_line: Sequence[str],
    name: str | None,
    options: Mapping[str, Any],
    run: Callable[..., int],
    *,
    again: tuple[JobStore, MachineJob] | None = None,
) -> int:
    """Run the command in a process of its own that survives a logout; returns when its request waits, has a share, or failed.

    `run` is what `tranche run` does with these options. A run that is over can start `again`; it stays as it was if that fails.
    """
    request = parse_request(**{each: value for each, value in options.items() if each not in _NOT_OF_THE_REQUEST})
    name = name_from(command_line, secrets.token_hex(2)) if name is None else _checked(name)
    inherited = open_files()
    store = open_jobs(os.environ, create=True) if again is None else again[0].reopened()
    assert store is not None
    job = MachineJob(name, str(request), command_text(command_line), 0, time.time())
    launch_data = JobLaunch(command_line, options, _folder(), dict(os.environ), asdict(settings))
    lock = store.create(job, launch_data, again=again is not None)
    told, telling = os.pipe()
    runner = os.fork()
    if runner == 0:
        os.set_inheritable(lock, True)
        launch = _DetachedRun(store, job, telling, inherited)
        return launch.run(lambda how: run(settings, command_line, how, **options))
    os.close(telling)
    pass_signals_to(runner)
    if not os.read(told, 1):
        _, status = os.waitpid(runner, 0)
        code = os.waitstatus_to_exitcode(status)
        if again is None:
            store.remove(name)
        else:
            store.write(again[1])
        return code if code >= 0 else 128 - code
    show(name)
    if not options["quiet"]:
        say(f"job {name} continues without this terminal; to see its output, run: tranche job logs -f {name}")
    return 0


_SERVED_WITHIN_SECONDS = 120.0
"""How long after the machine's start the service may take."""


def restart(settings: Settings, names: Sequence[str], run: Callable[..., int], *, lost: bool) -> int:
    """Start these runs again, or all that are lost; returns the first exit code that is not 0."""
    store = own_jobs()
    jobs = [] if store is None else store.jobs()
    found = [each for each in jobs if each.name in names or (lost and each.status == "lost")]
    if unknown := sorted({*names} - {each.name for each in found}):
        raise UsageError(
            f"you have no detached run named {unknown[0]} on this machine",
            hint="list your detached runs with: tranche job list",
        )
    if store is None or not found:
        say("there are no lost runs to restart")
        return 0
    if lost:
        _await_service(settings)
    first, caller = 0, os.getpid()
    for each in found:
        code = _start_again(store, each, run)
        if os.getpid() != caller:
            return code  # this is the run, which has ended
        first = first or code
    return first


def _checked(name: str) -> str:
    """The name, if a folder of that name is plain to read and type; UsageError otherwise."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"'{name}' is not a valid name of a detached run",
            hint=f"use at most {_LONGEST_NAME} letters, digits, '.', '_' and '-', and begin with a letter or digit",
        )
    return name


def _folder() -> str:
    """The current folder; "" if it was removed."""
    with suppress(OSError):
        return os.getcwd()
    return ""


def _start_again(store: JobStore, job: MachineJob, run: Callable[..., int]) -> int:
    """Start a run again; returns the exit code, that of an error after it was told."""
    caller = os.getpid()
    try:
        launch = store.launch(job.name)
        try:
            os.chdir(launch.folder)
        except OSError as error:
            raise UsageError(f"cannot start {job.name} in {launch.folder}: {error.strerror}") from error
        os.environ.clear()
        os.environ.update(launch.environment)
        again = store, job
        return run_detached(Settings(**launch.machine), launch.command, job.name, launch.options, run, again=again)
    except (TypeError, KeyError) as error:  # options of another version
        if os.getpid() != caller:
            raise
        fail(f"cannot start {job.name} again: {error}", "start it with: tranche run --detach")
        return UsageError.exit_code
    except TrancheError as error:
        fail(error.message, error.hint)
        return error.exit_code


def _await_service(settings: Settings) -> None:
    """Return when this user can get shares, or much later: the service may start after what starts this at boot."""
    deadline = time.monotonic() + _SERVED_WITHIN_SECONDS
    while time.monotonic() < deadline:
        with suppress(ServiceUnavailable):
            if (socket := socket_of_service(settings)) is not None:
                connect(socket).close()
                return
            if register_places(settings, reading=True).writable:
                return
        pause(1.0)


class _DetachedRun:
    """The process of a detached run. It keeps the caller's stderr until its request is accepted."""

    def __init__(self, store: JobStore, job: MachineJob, telling: int, inherited: frozenset[int]) -> None:
        self._store, self._job, self._telling, self._inherited = store, job, telling, inherited

    def run(self, run: Callable[[Launch], int]) -> int:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        log = self._store.log(self._job.name, write=True)
        os.dup2(log, 1)
        empty(0)
        self._log = log
        self._write(pid=os.getpid())
        code = 1
        try:
            code = run(Launch("", self._starting, self._accepted, self._waits_again))
        except TrancheError as error:
            fail(error.message, error.hint)  # before the end is known: who awaits it reads the log next
            code = error.exit_code
        finally:
            self._end(code)
        return code

    def _accepted(self) -> None:
        if self._telling < 0:
            return
        os.dup2(self._log, 2)
        for each in self._inherited:
            with suppress(OSError):
                os.close(each)
        with suppress(BrokenPipeError):
            os.write(self._telling, b"+")
        os.close(self._telling)
        self._telling = -1

    def _starting(self, variables: Mapping[str, str]) -> None:
        self._write(started=time.time(), allocation_id=variables[MARK])
        self._accepted()

    def _waits_again(self) -> None:
        self._write(started=None, allocation_id="")

    def _write(self, **changed: Any) -> None:
        """Write the state down. A run that was accepted goes on without: its disk may be full, or its folder gone."""
        self._job = self._job._replace(**changed)
        try:
            self._store.write(self._job)
        except OutputUnwritable:
            if self._telling >= 0:
                raise

    def _end(self, code: int) -> None:
        """Write down that the run has ended, when there is room for it: without an end, it would count as lost."""
        self._job = self._job._replace(ended=time.time(), exit_code=code)
        while True:
            try:
                self._store.write(self._job)
                return
            except OutputUnwritable:
                if self._telling >= 0:
                    raise
                if self._store.find(self._job.name) is None or told_to_end():
                    return
                time.sleep(_ROOM_SECONDS)


def own_jobs() -> JobStore | None:
    """This user's detached runs on this machine; None without one."""
    store = open_jobs(os.environ)
    return store if store is not None and store.jobs() else None


def list_jobs(jobs: Sequence[MachineJob], output: str) -> None:
    """Print the runs."""
    if output == "json":
        print_json("MachineJobList", jobs=[job_document(each) for each in jobs])
        return
    if not jobs:
        say("you have no detached runs on this machine")
        return
    now = time.time()
    rows = [
        (each.name, each.request, each.status, each.exit_code, describe.age(max(now - each.created, 0)), each.command)
        for each in jobs
    ]
    print_table(_COLUMNS, rows)


def describe_job(store: JobStore, job: MachineJob, output: str) -> None:
    """Print a run, and what tells more about it."""
    folder = ""
    with suppress(UsageError):
        folder = store.launch(job.name).folder
    if output == "json":
        print_json("MachineJob", **job_document(job), folder=folder or None)
        return
    moments = {"created": job.created, "started": job.started, "ended": job.ended}
    show(f"job        {job.name}")
    show(f"request    {job.request}")
    show(f"status     {job.status}{'' if job.exit_code is None else f' with exit code {job.exit_code}'}")
    for name, moment in moments.items():
        if moment is not None:
            show(f"{name:<10} {describe.local_time(moment)}")
    if job.status == "running":
        show(f"share      {job.allocation_id}")
    show(f"command    {job.command}")
    if folder:
        show(f"folder     {folder}")
    if job.status == "waiting":
        say(f"to see why it waits, run: tranche explain {job.name}")
    else:
        say(f"to see its output, run: tranche job logs {job.name}")


def print_log(store: JobStore, job: MachineJob, *, follow: bool, tail: int | None) -> None:
    """Print the output of a run; with `follow`, until it has ended."""
    with open(store.log(job.name), "rb") as log:
        for line in log if tail is None else deque(log, tail):
            click.echo(line, nl=False)
        while follow:
            now = store.find(job.name)
            over = now is None or now.status in ("ended", "lost")
            click.echo(log.read(), nl=False)
            if over:
                return
            sys.stdout.flush()
            pause(_POLL_SECONDS)


def wait_for(store: JobStore, job: MachineJob, state: str, deadline: float | None) -> int:
    """Wait until a run has ended, or runs; returns its exit code. JobFailed if that cannot be known, WaitTimeout."""
    while True:
        now = store.find(job.name)
        if now is None or now.status == "lost":
            raise JobFailed(
                f"job {job.name} was {'deleted' if now is None else 'killed, or the machine restarted'}",
                hint="list jobs with: tranche job list",
            )
        if now.exit_code is not None:
            say(f"job {job.name} has ended with exit code {now.exit_code}")
            return now.exit_code
        if state == "running" and now.status == "running":
            say(f"job {job.name} is running")
            return 0
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(f"job {job.name} is still {now.status} at the timeout", hint="see: tranche ps")
        time.sleep(_POLL_SECONDS)


def _continue(pid: int) -> None:
    """Continue a `tranche run` that is stopped: it would neither end nor see its command end. It leads a session of its own."""
    if pid and process_stopped(pid):
        with suppress(ProcessLookupError):
            if os.getsid(pid) == pid:
                os.kill(pid, signal.SIGCONT)


def delete_job(settings: Settings, store: JobStore, job: MachineJob) -> None:
    """End a run and remove what is known of it. GpuBusy if processes that an ended command left still hold the share."""
    if job.status == "running":
        _continue(job.pid)
    if job.allocation_id:
        runs = job.status == "running"
        reading = not runs or not register_places(settings, reading=True).writable
        with suppress(AllocationUnknown), open_host(settings, reading=reading) as host:
            take_back(host, job.allocation_id, terminate=runs, grace=_GRACE_SECONDS)
    deadline = time.monotonic() + _GRACE_SECONDS
    told = False
    while (now := store.find(job.name)) is not None and now.status in ("waiting", "running"):
        if not told and now.pid and now.status == "waiting":
            told = True
            with suppress(ProcessLookupError):
                os.kill(now.pid, signal.SIGTERM)
        _continue(now.pid)
        if time.monotonic() >= deadline:
            raise UsageError(
                f"job {job.name} is still {now.status}", hint=f"end its tranche run with: kill -9 {now.pid}"
            )
        time.sleep(_POLL_SECONDS)
    store.remove(job.name)
    say(f"deleted {job.name}")
