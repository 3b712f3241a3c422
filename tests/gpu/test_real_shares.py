"""Shares of a whole GPU and of parts by MPS, on a real GPU as on a simulated one: the same promises, the same programs.

On a real GPU nothing but MPS daemons and programs is started: `guard` refuses every change, and only remembers the compute mode.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.machines import TRANCHE, TestMachine, wait_until
from tests.simulator.cuda_programs import PREAMBLE
from tests.simulator.machines import SIMULATOR_VARIABLES
from tests.support import in_process
from tranche_simulator import SimulatedMachine

GUARD = Path(__file__).parent / "guard"
OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
SECONDS = 120.0
# On a real GPU the kernel runs until its process ends; on a simulated one, for an hour.
BUSY = """
TEXT = b".version 6.4\\n.target sm_70\\n.address_size 64\\n// tranche-sim: spin time=3600s\\n"
TEXT += b".visible .entry spin() { again: bra again; }"
spin = check(cu.cuModuleGetFunction(check(cu.cuModuleLoadData(TEXT)), b"spin"))
check(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)); tell("busy"); wait()
"""
BAD = """
TEXT = b".version 6.4\\n.target sm_70\\n.address_size 64\\n// tranche-sim: bad fault=700\\n"
TEXT += b".visible .entry bad() { .reg .u64 %a; mov.u64 %a, 16; st.global.u32 [%a], 1; ret; }"
bad = check(cu.cuModuleGetFunction(check(cu.cuModuleLoadData(TEXT)), b"bad"))
check(cu.cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)); tell(code(cu.cuCtxSynchronize()))
"""


@dataclass
class Place:
    """A machine with one GPU at least, and the environment in which commands meet it."""

    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def tranche(self, *arguments: str) -> str:
        """What a command prints; it must succeed. The guard of a real GPU is loaded by a new interpreter alone."""
        run = in_process.run_anew if "GPU_GUARD" in self.environment else in_process.run
        done = run(arguments, self.environment, seconds=SECONDS)
        assert done.code == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """The document that a command prints."""
        return json.loads(self.tranche(*arguments, "-o", "json"))

    def start(self, *request: str, code: str) -> subprocess.Popen[str]:
        """A program under `tranche run`."""
        process = subprocess.Popen(
            [*TRANCHE, "run", "--no-wait", *request, "--", sys.executable, "-c", PREAMBLE + code],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *request: str, code: str) -> Any:
        """What a program under `tranche run` tells; it must succeed."""
        process = self.start(*request, code=code)
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, said
        return json.loads(said.splitlines()[-1])


def told(process: subprocess.Popen[str]) -> Any:
    """What the program tells next."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended with {process.wait()}"
    return json.loads(line)


def go_on(process: subprocess.Popen[str]) -> None:
    """Let its `wait()` return."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def command_of(pid: int) -> str:
    """What a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A machine that gives no slices: a real one whose GPU is free, or one with an H200."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as name:
        folder = Path(name)
        if request.param == "real":
            place = Place(_real(folder))
        else:
            machine = SimulatedMachine.create("machine", boards=["H200-141GB"], root=folder, time_scale=0)
            place = Place(TestMachine(machine, folder).environment)
        place.tranche("policy", "set", "sharing=shared")
        try:
            yield place
        finally:
            for process in place.started:
                process.kill()
                process.communicate()
            # The last one has the GPU whole, so the daemon must have ended.
            wait_until(lambda: not place.json("ps")["allocations"])
            place.tranche("run", "--timeout", "60", "--gpus", "1", "--", "true")
            assert not [line for line in _processes() if f"CUDA_MPS_PIPE_DIRECTORY={folder}" in line]


def _real(folder: Path) -> dict[str, str]:
    """The environment of this machine's own driver, guarded; skips where there is none, or none that can share."""
    kept = {name: value for name, value in os.environ.items() if name not in SIMULATOR_VARIABLES}
    probe = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    done = subprocess.run([sys.executable, "-c", probe], env=kept, capture_output=True, text=True, check=False)
    if done.returncode != 0 or int(done.stdout) == 0:
        pytest.skip("no NVIDIA driver: " + (done.stderr.strip().splitlines() or ["it shows no GPU"])[-1])
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho 'Insufficient Permissions'\nexit 4\n")
    smi.chmod(0o755)
    path = [str(GUARD), *(each for each in sys.path if each)]
    variables = {"PYTHONPATH": os.pathsep.join(path), "PATH": f"{smi.parent}{os.pathsep}{kept.get('PATH', '')}"}
    return {**kept, **variables, "GPU_GUARD": str(folder), "TRANCHE_STATE_DIR": str(folder / "state")}


def _processes() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue


def test_a_share_has_the_memory_that_was_asked_for_and_little_more(place: Place) -> None:
    """Beside its context the program gets 4 GiB, and not 5."""
    code = "context(); tell([code(cu.cuMemAlloc(4 << 30)), code(cu.cuMemAlloc(1 << 30)), free() >> 20])"
    first, second, left = place.run("--gpu-memory", "4Gi", code=code)
    print(f"left of the share: {left} MiB")
    assert [first, second] == [0, OUT_OF_MEMORY]


def test_a_ceiling_leaves_its_part_of_the_multiprocessors(place: Place) -> None:
    code = "context(); tell(check(cu.cuDeviceGetAttribute(cu.CUdevice_attribute(16), 0)))"
    every, some = place.run("--gpus", "1", code=code), place.run("--gpu-memory", "4Gi", "--compute", "25", code=code)
    assert every * 0.25 - 2 < some <= every * 0.25


def test_two_neighbours_work_and_one_that_is_killed_leaves_the_other(place: Place) -> None:
    one = place.start("--gpu-memory", "4Gi", code="context(); tell(0); wait()")
    other = place.start("--gpu", "0.5", code="context(); tell(0); wait(); tell(code(cu.cuMemAlloc(1 << 30)))")
    assert told(one) == told(other) == 0
    shares = place.json("ps")["allocations"]
    assert {grant["isolation"] for each in shares for grant in each["grants"]} == {"soft"}
    (gpu,) = [each for each in place.json("gpus")["gpus"] if each["allocationIds"]]
    listed = sorted(process["pid"] for process in gpu["processes"])
    pids = {"gpuMemoryBytes" in each["request"]: each["pid"] for each in shares}
    assert listed == sorted(pids.values()), "the server is not listed, and each client is listed once"
    os.kill(pids[True], signal.SIGKILL)
    assert one.wait(SECONDS) == 128 + signal.SIGKILL
    go_on(other)
    assert told(other) == 0


def test_after_a_kill_amid_an_endless_kernel_shares_work_once_the_neighbours_are_gone(place: Place) -> None:
    """On an H200 with 580.159 such a kill was a fault of all: the neighbours' next call answered 700."""
    busy = place.start("--gpu-memory", "4Gi", code="context()\n" + BUSY)
    calm = place.start("--gpu-memory", "4Gi", code="context(); tell(0); wait(); tell(code(cu.cuCtxSynchronize()))")
    assert told(busy) == "busy"
    assert told(calm) == 0
    (pid,) = [each["pid"] for each in place.json("ps")["allocations"] if "spin" in command_of(each["pid"])]
    os.kill(pid, signal.SIGKILL)
    assert busy.wait(SECONDS) == 128 + signal.SIGKILL
    go_on(calm)
    print(f"the neighbour's next call answered {told(calm)}")
    calm.wait(SECONDS)
    assert place.run("--gpu-memory", "4Gi", code="context(); tell(code(cu.cuMemAlloc(1 << 30)))") == 0


def test_a_fault_ends_the_neighbours_is_written_down_and_the_next_share_works(place: Place) -> None:
    calm = place.start("--gpu-memory", "4Gi", code="context(); tell(0); wait(); tell(code(cu.cuCtxSynchronize()))")
    assert told(calm) == 0
    faulty = place.start("--gpu-memory", "4Gi", code="context()\n" + BAD + "sys.exit(1)")
    assert told(faulty) == ILLEGAL_ADDRESS
    assert faulty.wait(SECONDS) == 1
    shares = {each["id"] for each in place.json("ps")["allocations"]}
    hit = {each["allocationId"] for each in place.json("events")["events"] if each["type"] == "FaultShared"}
    assert hit > shares, "the neighbour's share and the one that has ended"
    go_on(calm)
    assert told(calm) == ILLEGAL_ADDRESS
    calm.wait(SECONDS)
    assert place.run("--gpu-memory", "4Gi", code="context(); tell(code(cu.cuMemAlloc(1 << 30)))") == 0


def test_a_share_outlives_the_command_that_got_it(place: Place) -> None:
    """`kill -9` of `tranche run`: the program keeps its share until it ends."""
    outer = place.start("--gpu-memory", "4Gi", code="context(); tell(os.getpid()); wait()")
    pid = told(outer)
    outer.kill()
    outer.wait(SECONDS)
    (share,) = place.json("ps")["allocations"]
    assert share["pid"] == pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not place.json("ps")["allocations"])


@pytest.mark.parametrize("place", [pytest.param("real", marks=pytest.mark.gpu)], indirect=True)
def test_the_time_of_a_command(place: Place) -> None:
    """Printed, not judged: how long a whole GPU and a share take until `true` has ended."""

    def seconds(*request: str) -> float:
        before = time.monotonic()
        place.tranche("run", "--quiet", *request, "--", "true")
        return time.monotonic() - before

    def times(*request: str) -> Callable[[], list[float]]:
        return lambda: sorted(seconds(*request) for _ in range(5))

    for request in (("--gpus", "1"), ("--gpu-memory", "4Gi")):
        print(f"{' '.join(request)}: {times(*request)()}")
