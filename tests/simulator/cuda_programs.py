"""Programs that use CUDA, as processes of their own: each gets a machine's libcuda by the dynamic linker, like any other."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulator.machines import process_environment, run_python
from tranche_simulator import SimulatedMachine

MIB = 1 << 20

# What every program begins with: `check` gives what a call of cuda-bindings returns, `tell` and `wait` talk to the test.
PREAMBLE = '''
import ctypes, json, os, sys
from cuda.bindings import driver as cu

def code(answer):
    return int(answer[0])

def check(answer):
    assert code(answer) == 0, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]

def context(ordinal=0):
    check(cu.cuInit(0))
    return check(cu.cuCtxCreate(None, 0, check(cu.cuDeviceGet(ordinal))))

def tell(value):
    print(json.dumps(value), flush=True)

def wait():
    return sys.stdin.readline()

def address(buffer):
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))

def free():
    return check(cu.cuMemGetInfo())[0]

PTX = b"""
.version 8.0
.target sm_75
.address_size 64
// tranche-sim: work time=param0*1us
// tranche-sim: bad time=1ms fault=700
.visible .entry work(.param .u64 microseconds) { ret; }
.visible .entry bad() { ret; }
"""

def kernel(name=b"work"):
    return check(cu.cuModuleGetFunction(check(cu.cuModuleLoadData(PTX)), name))

# Blocks enough for every multiprocessor, unless told otherwise.
def launch(function, microseconds, stream=0, blocks=1000):
    arguments = ((microseconds,), (ctypes.c_ulonglong,))
    return code(cu.cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 0, stream, arguments, 0))

def event(stream=0):
    made = check(cu.cuEventCreate(0))
    check(cu.cuEventRecord(made, stream))
    return made
'''


def cuda(machine: SimulatedMachine, code: str, **variables: str) -> Any:
    """What a program tells last, after it has run to its end."""
    return json.loads(run_python(machine, PREAMBLE + code, **variables).stdout.splitlines()[-1])


class CudaProgram:
    """A program that goes on when the test lets it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def told(self) -> Any:
        """What it tells next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        return json.loads(line)

    def has_told(self) -> bool:
        """Whether it tells something that nobody has read."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def go_on(self, word: str = "") -> None:
        """Let its `wait()` return."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait()


@contextmanager
def cuda_program(machine: SimulatedMachine, code: str, **variables: str) -> Iterator[CudaProgram]:
    """A program that runs beside the test, killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + code],
        env=process_environment(machine, **variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield CudaProgram(process)
    finally:
        process.kill()
        process.communicate()
