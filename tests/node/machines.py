"""A simulated machine with a state folder, and the agent on it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tranche.core.allocation import NodeView
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import GpuState, InstanceKey, NodeState
from tranche.hardware.nvml import NvmlDriver
from tranche.node.execution.executor import Progress, no_progress
from tranche.node.held import HeldAllocation, QueuePlace
from tranche.node.host import Host
from tranche.node.limits.share_groups import LimitsRefused
from tranche.planning.decide.allocate import Decision, Waiting
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode, Step
from tranche.planning.steps.plan import Plan
from tranche_simulator.build import ensure_built
from tranche_simulator.machine import SimulatedMachine

Boundary = Callable[[], None]


class WatchedDriver(NvmlDriver):
    """The driver over NVML, which first writes down what it is about to take away; `watch` names the file."""

    def __init__(self, watch: Path) -> None:
        super().__init__(reset_command=str(ensure_built().nvidia_smi))
        self._watch = watch

    def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        self._note("mode", gpu_uuid, None)
        super().set_mig_mode(gpu_uuid, enabled)

    def reset_gpu(self, gpu_uuid: str) -> None:
        self._note("reset", gpu_uuid, None)
        super().reset_gpu(gpu_uuid)

    def destroy_compute_instance(self, gpu_uuid: str, gpu_instance_id: int, compute_instance_id: int) -> None:
        self._note("destroy", gpu_uuid, gpu_instance_id)
        super().destroy_compute_instance(gpu_uuid, gpu_instance_id, compute_instance_id)

    def destroy_gpu_instance(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        self._note("destroy", gpu_uuid, gpu_instance_id)
        super().destroy_gpu_instance(gpu_uuid, gpu_instance_id)

    def _note(self, what: str, gpu_uuid: str, gpu_instance_id: int | None) -> None:
        slot = None
        if gpu_instance_id is not None:
            instance = next(i for i in self.observe_gpu(gpu_uuid).instances if i.id == gpu_instance_id)
            slot = [str(instance.profile), instance.placement.start, instance.placement.size]
        line = json.dumps([time.time(), what, gpu_uuid, slot]) + "\n"
        descriptor = os.open(self._watch, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Taken:
    """A call that takes something away: `what` is mode, reset or destroy; `when` is seconds since the epoch."""

    when: float
    what: str
    gpu_uuid: str
    key: InstanceKey | None


@dataclass(frozen=True, slots=True)
class Node:
    """A simulated machine and the folder of Tranche's state on it."""

    machine: SimulatedMachine
    folder: Path

    @property
    def state_dir(self) -> Path:
        """Where the ledger is."""
        return self.folder / "tranche"

    @property
    def watch(self) -> Path:
        """Where the driver writes down what it is about to take away."""
        return self.folder / "taken"

    @contextmanager
    def host(self, **options: Any) -> Iterator[Host]:
        """The agent; in this process NVML is the simulator from here on."""
        with self.driver() as driver:
            environment = {**os.environ, **self.machine.environment()}
            host = Host(driver, self.state_dir, **{"environment": environment, **options})
            try:
                yield host
            finally:
                host.close()

    @contextmanager
    def driver(self) -> Iterator[WatchedDriver]:
        """The driver alone; in this process NVML is the simulator from here on."""
        self.machine.preload()
        driver = WatchedDriver(self.watch)
        try:
            yield driver
        finally:
            driver.close()

    def taken(self) -> list[Taken]:
        """What every agent so far was about to take away, in order."""
        if not self.watch.exists():
            return []
        found = []
        for line in self.watch.read_text().splitlines():
            when, what, gpu_uuid, slot = json.loads(line)
            key = None
            if slot is not None:
                key = InstanceKey(gpu_uuid, parse_profile(slot[0]), Placement(slot[1], slot[2]))
            found.append(Taken(when, what, gpu_uuid, key))
        return found


def node_of(folder: Path, *boards: str, machine_type: str = "", time_scale: float = 0.0) -> Node:
    """A new machine of those boards (or of that type), with its files in the folder."""
    machine = SimulatedMachine.create(
        "machine", machine_type=machine_type, boards=boards, root=folder, time_scale=time_scale
    )
    return Node(machine, folder)


@dataclass(frozen=True, slots=True)
class Cut:
    """How one GPU is cut: mode, pending mode, and what is in each slot; without what differs from look to look."""

    mode: str
    pending: str
    slots: frozenset[tuple[InstanceKey, tuple[ProfileName, ...]]]


def cut_of(gpu: GpuState) -> Cut:
    """How that GPU is cut."""
    slots = frozenset((gpu.key(instance), instance.slices) for instance in gpu.instances)
    return Cut(gpu.mode, gpu.pending_mode, slots)


def cuts_of(node: NodeState) -> dict[str, Cut]:
    """How each GPU is cut, by UUID."""
    return {gpu.uuid: cut_of(gpu) for gpu in node}


def create(gpu: GpuState, profile: str, start: int, *slices: str) -> CreateInstance:
    """The step that creates an instance; without slices it gets one compute instance that spans it."""
    name = parse_profile(profile)
    offered = gpu.profile(name)
    assert offered is not None, f"{gpu.name} offers no {profile}"
    names = tuple(map(parse_profile, slices)) or (name,)
    return CreateInstance(gpu.uuid, name, Placement(start, offered.size), names)


def destroy(gpu: GpuState, profile: str, start: int) -> DestroyInstance:
    """The step that destroys an instance."""
    step = create(gpu, profile, start)
    return DestroyInstance(gpu.uuid, step.profile, step.placement)


def enable(gpu: GpuState) -> tuple[Step, ...]:
    """The steps that turn MIG mode on."""
    ask = SetMigMode(gpu.uuid, True)
    return (ask, ResetGpu(gpu.uuid)) if gpu.mode_change_needs_reset else (ask,)


def disable(gpu: GpuState) -> tuple[Step, ...]:
    """The steps that turn MIG mode off."""
    ask = SetMigMode(gpu.uuid, False)
    return (ask, ResetGpu(gpu.uuid)) if gpu.mode_change_needs_reset else (ask,)


def change(host: Host, *steps: Step, purpose: str = "test") -> None:
    """Carry those steps out as a declared change."""
    host.change(lambda view: Plan(purpose, steps))


def start_share(
    host: Host,
    place: QueuePlace,
    decide: Callable[[NodeView], Decision],
    *,
    progress: Progress = no_progress,
    decided: Callable[[], None] = lambda: None,
    seconds: float | None = None,
) -> HeldAllocation | Waiting:
    """Serve the waiter as `tranche run` does: decide, reserve, carry out; `decided` is called between the last two."""
    while True:
        with host.deciding(seconds) as (view, _):
            decision = decide(view)
            if isinstance(decision, Waiting):
                return decision
            reservation = host.reserve(place, decision, view)
        decided()
        try:
            return host.fulfil(reservation, progress=progress, seconds=seconds)
        except LimitsRefused:
            continue
