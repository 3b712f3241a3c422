"""Many processes at once, and processes killed in the middle of calls: the state stays sound."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pynvml as nvml

from tests.simulator.machines import (
    assert_sound,
    enable_mig,
    gpu,
    instances,
    make_machine,
    process_environment,
    talking_to,
)
from tranche_simulator import SimulatedMachine

# Creates and destroys at random on the GPUs named by its arguments; every answer must be one that the rules allow.
WORKER = """
import random, sys
import pynvml as n
from tests.simulator.machines import compute_instances, instances, profile_ids, span
seed, rounds, *gpus = map(int, sys.argv[1:])
choose = random.Random(seed)
n.nvmlInit()
allowed = {n.NVML_ERROR_INSUFFICIENT_RESOURCES, n.NVML_ERROR_IN_USE, n.NVML_ERROR_INVALID_ARGUMENT, n.NVML_ERROR_NOT_FOUND}
print("ready", flush=True)
done = 0
while done < rounds or rounds == 0:
    done += 1
    device = n.nvmlDeviceGetHandleByIndex(choose.choice(gpus))
    try:
        present = list(instances(device))
        if present and choose.random() < 0.5:
            instance = n.nvmlDeviceGetGpuInstanceById(device, choose.choice(present))
            for ci, _, _ in compute_instances(instance):
                n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance, ci))
            n.nvmlGpuInstanceDestroy(instance)
        else:
            span(n.nvmlDeviceCreateGpuInstance(device, choose.choice(profile_ids(device))))
    except n.NVMLError as error:
        assert error.value in allowed, error
"""

ROOT = Path(__file__).parents[2]


def start(
    machine: SimulatedMachine, seed: int, rounds: int, gpus: list[int], **variables: str
) -> subprocess.Popen[str]:
    environment = process_environment(machine, PYTHONPATH=f"{ROOT}:{ROOT / 'src'}", **variables)
    command = [sys.executable, "-c", WORKER, str(seed), str(rounds), *map(str, gpus)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fleet(tmp_path: Path) -> SimulatedMachine:
    machine = make_machine(tmp_path, "A100-40GB", "H100-80GB-SXM", "A30-24GB", "RTX-PRO-6000-96GB")
    with talking_to(machine):
        enable_mig(machine)
    return machine


def test_eight_processes_on_the_same_gpus(tmp_path: Path) -> None:
    machine = fleet(tmp_path)
    workers = [start(machine, seed, 60, [0, 1, 2, 3]) for seed in range(8)]
    for worker in workers:
        errors = worker.communicate(timeout=120)[1]
        assert worker.returncode == 0, errors
    with talking_to(machine):
        for index in range(4):
            assert_sound(gpu(index))
    assert machine.total_change_calls() > 8 * 60


def test_processes_on_different_gpus_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """While one GPU's lock is held (here by an operation that takes an hour), the others go on."""
    machine = fleet(tmp_path)
    slow = start(machine, 1, 0, [0], TRANCHE_SIM_TIME_SCALE="100000")
    assert slow.stdout is not None
    slow.stdout.readline()
    try:
        quick = start(machine, 2, 40, [1, 2, 3])
        errors = quick.communicate(timeout=120)[1]
        assert quick.returncode == 0, errors
        with talking_to(machine):
            assert instances(gpu(0)) == {}, "readers of the slow GPU are not held up, and see nothing half made"
    finally:
        slow.kill()
        slow.communicate()


def test_a_waiting_writer_goes_on_when_the_holder_is_killed(tmp_path: Path) -> None:
    machine = make_machine(tmp_path)
    with talking_to(machine):
        enable_mig(machine)
        before = machine.total_change_calls()
        holder = start(machine, 1, 0, [0], TRANCHE_SIM_TIME_SCALE="100000")
        while machine.total_change_calls() == before and holder.poll() is None:  # until it is inside its first call
            time.sleep(0.005)
        time.sleep(0.05)
        holder.kill()
        holder.communicate()
        nvml.nvmlDeviceCreateGpuInstance(gpu(), 19)
        assert len(instances(gpu())) == 1


def test_killed_at_random_instants_the_state_stays_sound(tmp_path: Path) -> None:
    machine = fleet(tmp_path)
    choose = random.Random(20)
    killed_inside = 0
    with talking_to(machine):
        for round_number in range(12):
            workers = [
                start(machine, 100 * round_number + n, 0, [0, 1, 2, 3], TRANCHE_SIM_TIME_SCALE="0.02") for n in range(2)
            ]
            for worker in workers:
                assert worker.stdout is not None
                worker.stdout.readline()
            for worker in workers:
                time.sleep(choose.uniform(0.0, 0.06))
                worker.kill()
                worker.communicate()
                killed_inside += worker.returncode == -signal.SIGKILL
            for index in range(4):
                assert_sound(gpu(index))
    assert killed_inside == 24, "every worker was still at work when it was killed"


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    machine = make_machine(tmp_path)
    with talking_to(machine):
        enable_mig(machine)
        machine.set_time_scale(0.05)
        results: list[int] = []

        def fill() -> None:
            for _ in range(4):
                try:
                    nvml.nvmlDeviceCreateGpuInstance(gpu(), 19)
                    results.append(0)
                except nvml.NVMLError as error:
                    results.append(int(error.value))

        threads = [threading.Thread(target=fill) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [0] * 7 + [nvml.NVML_ERROR_INSUFFICIENT_RESOURCES] * 9
        assert_sound(gpu())
