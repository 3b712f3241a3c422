"""How long commands wait on one machine: Tranche, which cuts GPUs on demand, beside Slurm, for which an administrator cut them.

Both get the same commands at the same moments, on the same processor. Slurm is Debian's, with its daemons on loopback and files
for GPUs. Its layout suits the whole trace best, which no administrator knows in advance.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import mean, median, quantiles
from typing import NamedTuple

from release.errors import ReleaseError

from bench.commands import TRANCHE, environment_of, tranche
from bench.decisions import filled
from bench.report import Report
from tranche.core.request import parse_request
from tranche.planning.decide.queue import WaitingRequest, startable

SEED = 11
_GPUS, _BOARD = 8, "H100-80GB-SXM"
_PHASE_SECONDS, _LOAD = 150.0, 0.85
_SHORTEST, _LONGEST = 10.0, 50.0
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sdiag", "sinfo")
_WAITING, _REPETITIONS = 500, 9


class Size(NamedTuple):
    """What a command asks for: of Tranche, of Slurm, the fraction of a GPU, and how many of these Slurm's GPU is cut into."""

    name: str
    request: tuple[str, ...]
    gres: str
    work: float
    a_gpu: int


SMALL = Size("9 GiB", ("--gpu-memory", "9Gi", "--isolation", "hard"), "1g.10gb", 1 / 7, 7)
MEDIUM = Size("30 GiB", ("--gpu-memory", "30Gi", "--isolation", "hard"), "3g.40gb", 1 / 2, 2)
WHOLE = Size("a GPU", ("--gpus", "1"), "whole", 1.0, 1)
SIZES = (SMALL, MEDIUM, WHOLE)
PHASES = {"mostly slices": (80, 15, 5), "mostly whole GPUs": (30, 20, 50)}


class Command(NamedTuple):
    """When it is asked for, in seconds from the beginning, its size, and how long it runs."""

    at: float
    size: Size
    seconds: float


def trace(random: Random) -> list[Command]:
    """Commands that arrive at random, and keep the machine equally busy in each phase."""
    found = []
    for phase, weights in enumerate(PHASES.values()):
        work = sum(weight * size.work for weight, size in zip(weights, SIZES, strict=True)) / sum(weights)
        gap = work * (_SHORTEST + _LONGEST) / 2 / (_GPUS * _LOAD)
        at, end = phase * _PHASE_SECONDS, (phase + 1) * _PHASE_SECONDS
        while (at := at + random.expovariate(1 / gap)) < end:
            found.append(Command(at, random.choices(SIZES, weights)[0], random.uniform(_SHORTEST, _LONGEST)))
    return found


def layout_for(commands: Sequence[Command]) -> dict[Size, int]:
    """How many GPUs of each size suit the commands best: in proportion to the GPU time that they ask for, at least one each."""
    asked = {size: sum(each.size.work * each.seconds for each in commands if each.size is size) for size in SIZES}
    found = {size: max(1, int(_GPUS * asked[size] / sum(asked.values()))) for size in SIZES}
    while sum(found.values()) < _GPUS:
        found[max(SIZES, key=lambda size: asked[size] / found[size])] += 1
    return found


def run(report: Report) -> None:
    if missing := [each for each in _PROGRAMS if shutil.which(each) is None]:
        raise ReleaseError(f"there is no {missing[0]} on this machine", hint="on Debian: apt install slurm-wlm munge")
    commands = trace(Random(SEED))
    gpus = layout_for(commands)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        slurm = stack.enter_context(_slurm(folder / "slurm", gpus))
        ours = environment_of(folder / "tranche")
        tranche(ours, "sim", "create", "lab", *("--gpu", _BOARD) * _GPUS)
        waits = _replayed(commands, folder, {"tranche": _our_start(ours), "slurm": _slurm_start(slurm)})
        cycle = _slurm_cycle(slurm)
    *first, last = (each.name for each in SIZES)
    layout = ", ".join(f"{count} {size.gres}" for size, count in gpus.items())
    report.section(
        "Beside Slurm on one machine",
        f"Each of {len(commands)} commands requests {', '.join(first)} or {last} for {_SHORTEST:.0f} to {_LONGEST:.0f} s.",
        f"The commands first request {' and then '.join(PHASES)}."
        f" On average, they request {_LOAD:.0%} of {_GPUS} simulated {_BOARD} GPUs.",
        "Tranche creates slices on demand. Slurm 22.05 uses backfill and the fixed layout that suits all commands best",
        f"(GPUs: {layout}).",
    )
    rows = []
    for title, keep in {**{each.name: each for each in SIZES}, "all": None}.items():
        found = [[wait for command, wait in each if keep in (None, command.size)] for each in waits.values()]
        rows.append([title, len(found[0]), *(f"{mean(each):.1f} s, {_p95(each):.1f} s" for each in found)])
    report.table(["commands", "count", "Tranche: mean and p95 wait", "Slurm"], rows)
    report.section(
        "Deciding among 500 waiting commands",
        f"Tranche's figure is the median CPU time of {_REPETITIONS} decisions; Slurm's figures come from `sdiag`.",
    )
    report.table(
        ["Tranche", "Slurm: mean cycle", "mean cycle of backfill"],
        [[f"{_our_decision():.1f} ms", *(f"{each / 1000:.1f} ms" for each in cycle)]],
    )


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else values[0]


Start = Callable[[Command, str], "subprocess.Popen[bytes] | None"]
"""Asks for a command's share in which a shell runs the script; returns the process that waits for it, if one does."""


def _replayed(
    commands: Sequence[Command], folder: Path, systems: Mapping[str, Start]
) -> dict[str, list[tuple[Command, float]]]:
    """The seconds that each command waited in each system, which get all of them at the same moments."""
    began = time.time()
    asked: dict[tuple[str, int], float] = {}

    def ask(name: str, start: Start) -> None:
        waiting = []
        for number, each in enumerate(commands):
            time.sleep(max(0.0, began + each.at - time.time()))
            asked[name, number] = time.time()
            script = f"date +%s.%N > {_started(folder, name, number)}; sleep {each.seconds:.2f}"
            waiting.append(start(each, script))
        for process in filter(None, waiting):
            process.wait()

    threads = [threading.Thread(target=ask, args=each) for each in systems.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while missing := [key for key in asked if not _started(folder, *key).exists()]:
        if time.time() > began + 4 * len(PHASES) * _PHASE_SECONDS:
            raise ReleaseError(f"{len(missing)} commands never started, such as {missing[0]}")
        time.sleep(1.0)
    time.sleep(1.0)
    return {
        name: [
            (each, float(_started(folder, name, number).read_text()) - asked[name, number])
            for number, each in enumerate(commands)
        ]
        for name in systems
    }


def _started(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number}"


def _our_start(environment: Mapping[str, str]) -> Start:
    def start(command: Command, script: str) -> subprocess.Popen[bytes]:
        line = (
            *TRANCHE,
            "--simulate",
            "lab",
            "run",
            "-q",
            "--time",
            "60s",
            *command.size.request,
            "--",
            "sh",
            "-c",
            script,
        )
        return subprocess.Popen(line, env=environment)

    return start


def _slurm_start(environment: Mapping[str, str]) -> Start:
    def start(command: Command, script: str) -> None:
        gres = f"--gres=gpu:{command.size.gres}:1"
        _do(environment, "sbatch", "-Q", "--time=1", gres, "--output=/dev/null", "--wrap", script)

    return start


def _slurm_cycle(environment: Mapping[str, str]) -> tuple[float, float]:
    """Microseconds of Slurm's mean cycles, of its scheduler and its backfill, while so many jobs wait."""
    _do(environment, "sbatch", "-Q", "--time=9", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300")
    for number in range(_WAITING):
        gres = f"--gres=gpu:{SIZES[number % len(SIZES)].gres}:1"
        _do(environment, "sbatch", "-Q", "--time=1", gres, "--output=/dev/null", "--wrap", "true")
    _do(environment, "sdiag", "--reset")
    time.sleep(30.0)
    told = _do(environment, "sdiag")
    _do(environment, "scancel", "--state=PENDING", "--user=root")
    _do(environment, "scancel", "--user=root")
    first, second = re.findall(r"Mean cycle:\s+(\d+)", told)[:2]
    return float(first), float(second)


def _our_decision() -> float:
    """Milliseconds of CPU time until Tranche knows which of so many waiting commands may start on a busy machine."""
    view = filled(_GPUS, SEED)
    asked = [parse_request(mig_profile="7g.40gb"), *(parse_request(gpu_memory=f"{gib}Gi") for gib in range(20, 39))]
    waiters = [WaitingRequest(str(number), asked[number % len(asked)]) for number in range(_WAITING)]
    times = []
    for _ in range(_REPETITIONS):
        began = time.process_time()
        list(startable(view, waiters))
        times.append(1000 * (time.process_time() - began))
    return median(times)


def _do(environment: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise ReleaseError(f"{' '.join(words[:3])} failed: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _slurm(folder: Path, gpus: Mapping[Size, int]) -> Iterator[dict[str, str]]:
    """Slurm's daemons on loopback, with files for GPUs; yields the environment of its commands."""
    for each in ("state", "spool", "gpus"):
        (folder / each).mkdir(parents=True)
    for parent in (folder, folder.parent):
        parent.chmod(0o755)
    host, environment = socket.gethostname().partition(".")[0], os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    counts = {size.gres: count * size.a_gpu for size, count in gpus.items()}
    lines = []
    for kind, count in counts.items():
        files = [folder / "gpus" / f"{kind}-{number}" for number in range(count)]
        for file in files:
            os.mknod(file, 0o20666, os.makedev(1, 3))
        lines += [f"Name=gpu Type={kind} File={file}" for file in files]
    (folder / "gres.conf").write_text("\n".join(lines) + "\n")
    gres = ",".join(f"gpu:{kind}:{count}" for kind, count in counts.items())
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, host=host, gres=gres, ports=_free_ports(2)))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    daemons = {
        "munged": ("--force", "--foreground", f"--key-file={key}", f"--socket={folder}/munge.sock",
                   *(f"--{each}-file={folder}/munge.{each}" for each in ("pid", "log", "seed"))),
        "slurmctld": ("-D", "-c"),
        "slurmd": ("-D",),
    }  # fmt: skip
    with ExitStack() as stack:
        for name, options in daemons.items():
            log = stack.enter_context((folder / f"{name}.out").open("wb"))
            daemon = subprocess.Popen((name, *options), env=environment, stdout=log, stderr=log, cwd="/")
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
            time.sleep(2.0)
        for _ in range(30):
            with suppress(ReleaseError):
                if "idle" in _do(environment, "sinfo", "--noheader", "--format=%t"):
                    break
            time.sleep(1.0)
        else:
            raise ReleaseError(f"Slurm did not start: {(folder / 'slurmctld.out').read_text()[-500:]}")
        yield environment


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


_CONFIGURATION = """ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_resolution=1,bf_continue,bf_max_job_test=1000,default_queue_depth=1000,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 Gres={gres}
PartitionName=main Nodes=ALL Default=YES State=UP
"""
