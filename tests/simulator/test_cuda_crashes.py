"""Programs killed at any moment: they hold no memory and no time of the GPU, and disturb nobody."""

from __future__ import annotations

import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.machines import wait_until
from tests.simulator.cuda_programs import MIB, CudaProgram, cuda, cuda_program
from tests.simulator.machines import make_machine
from tests.support.length import some_of
from tranche_simulator import SimulatedMachine

CONTEXT = 187 * MIB

# Does a bit of everything, for ever.
RESTLESS = """
import random
dice = random.Random(int(os.environ["SEED"])); check(cu.cuInit(0)); tell("ready")
while True:
    mine = check(cu.cuCtxCreate(None, 0, 0)); work = kernel(); held = []
    streams = [check(cu.cuStreamCreate(0)) for _ in range(3)]
    for _ in range(dice.randrange(60)):
        choice = dice.randrange(6)
        if choice == 0:
            answer = cu.cuMemAlloc(dice.randrange(1, 1 << 26))
            held += [answer[1]] if code(answer) == 0 else []
        elif choice == 1 and held:
            check(cu.cuMemFree(held.pop(dice.randrange(len(held)))))
        elif choice == 2:
            assert launch(work, dice.randrange(1000), dice.choice(streams)) == 0
        elif choice == 3:
            check(cu.cuStreamWaitEvent(dice.choice(streams), event(dice.choice(streams)), 0))
        elif choice == 4:
            check(cu.cuMemFreeAsync(check(cu.cuMemAllocAsync(1 << 20, 0)), 0))
        else:
            check(cu.cuStreamSynchronize(dice.choice(streams)))
    check(cu.cuCtxDestroy(mine))
"""

# Sees to it that its memory is its own and that its kernels are done.
WITNESS = """
context(); work = kernel(); size = 1 << 20; memory = check(cu.cuMemAlloc(size))
sent, got = bytearray(os.urandom(size)), bytearray(size); check(cu.cuMemcpyHtoD(memory, address(sent), size)); rounds = 0
import select
tell("ready")
while not select.select([sys.stdin], [], [], 0)[0]:
    assert launch(work, 100) == 0
    check(cu.cuCtxSynchronize()); check(cu.cuMemcpyDtoH(address(got), memory, size)); assert got == sent; rounds += 1
check(cu.cuMemFree(memory)); tell([rounds > 0, code(cu.cuCtxSynchronize())])
"""


@pytest.fixture
def t4(tmp_path: Path) -> SimulatedMachine:
    machine = make_machine(tmp_path, "T4")
    machine.set_time_scale(1.0)
    return machine


def kill_in_the_middle(program: CudaProgram, dice: random.Random) -> None:
    """After at most 30 ms of its life."""
    program.told()
    with suppress(subprocess.TimeoutExpired):
        program.process.wait(timeout=dice.random() * 0.03)
    program.kill()
    assert program.process.returncode == -signal.SIGKILL, "until then all went well"


@pytest.mark.parametrize("seed", some_of(range(3), 1))
def test_nothing_is_left_of_whoever_was_killed(t4: SimulatedMachine, seed: int) -> None:
    dice = random.Random(seed)
    with cuda_program(t4, WITNESS) as witness:
        witness.told()
        for round_ in range(12):
            seeds = [str(seed * 100 + round_), str(seed * 100 + round_ + 50)]
            with (
                cuda_program(t4, RESTLESS, SEED=seeds[0]) as program,
                cuda_program(t4, RESTLESS, SEED=seeds[1]) as other,
            ):
                kill_in_the_middle(program, dice)
                kill_in_the_middle(other, dice)
        wait_until(lambda: [client.pid for client in t4.clients()] == [witness.pid])
        witness.go_on()
        assert witness.told() == [True, 0]
    assert t4.clients() == ()
    left = "context(); tell([free(), launch(kernel(), 1000), code(cu.cuCtxSynchronize())])"
    assert cuda(t4, left) == [14914 * MIB - CONTEXT, 0, 0]
