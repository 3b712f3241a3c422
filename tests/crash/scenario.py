"""Random machines in the middle of their life, and random work on them.

A scenario is prepared once and copied for each crash: the machine's state file and the ledger are plain files. Locks and
clients do not come with a copy, because they belong to processes: a Keeper makes them anew.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.grid_model import free_placements
from tests.node.machines import Node, disable, enable, node_of, start_share
from tests.node.processes import Child
from tranche.core.allocation import FractionalShare, Grant, NodeView, Slice, WholeGpu, memory_of, nearest_request
from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import PlacedInstance, Placement
from tranche.core.keeper import PodKeeper
from tranche.core.profile import ProfileName
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.core.state import GpuInstance, GpuState, InstanceKey
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.locks import FileLock
from tranche.node.state.session import StateFolder
from tranche.planning.decide.allocate import Granted
from tranche.planning.steps import CreateInstance, DestroyInstance, Step
from tranche.planning.steps.plan import Plan
from tranche_simulator.machine import SimulatedMachine

FAMILIES: dict[str, tuple[str, ...]] = {
    "A100": ("A100-40GB", "A100-40GB"),
    "mixed": ("A100-40GB", "H100-80GB-SXM", "A30-24GB", "T4"),
    "A30": ("A30-24GB", "A30-24GB"),
    "H100": ("H100-80GB-SXM", "H100-80GB-SXM"),
    "B200": ("B200", "B200"),
    "RTX-PRO-6000": ("RTX-PRO-6000-96GB", "RTX-PRO-6000-96GB"),
}


@dataclass(frozen=True, slots=True)
class Keep:
    """What must not be touched: held allocations by id with their slots (None: the whole GPU), and clients by device UUID."""

    allocations: tuple[tuple[str, str, InstanceKey | None], ...]
    clients: tuple[tuple[str, str, InstanceKey | None], ...]

    @property
    def held(self) -> dict[str, tuple[InstanceKey | None, ...]]:
        """The held allocations with their slots."""
        return {name: (key,) for name, _, key in self.allocations}

    @property
    def slots(self) -> frozenset[InstanceKey]:
        """Every instance that must stay."""
        return frozenset(key for _, _, key in (*self.allocations, *self.clients) if key is not None)

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that must neither be reset nor switched."""
        return frozenset(gpu for _, gpu, _ in (*self.allocations, *self.clients))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A prepared machine, what is kept on it, and the allocations whose processes are gone."""

    node: Node
    keep: Keep
    dead: tuple[str, ...]

    def copy_to(self, folder: Path) -> Scenario:
        """The same in another folder."""
        shutil.copytree(self.node.folder, folder)
        machine = SimulatedMachine(folder / self.node.machine.directory.name)
        return Scenario(Node(machine, folder), self.keep, self.dead)


class Keeper:
    """A process that holds the kept allocations and is the kept clients, until end() or the death of the tests."""

    def __init__(self, scenario: Scenario) -> None:
        ready, say_ready = os.pipe()
        stop, self._stop = os.pipe()
        leave = self._stop

        def keep() -> None:
            os.close(leave)
            places = StateFolder(scenario.node.state_dir)
            locks = [FileLock(places.allocation(name)) for name, _, _ in scenario.keep.allocations]
            machine = SimulatedMachine(scenario.node.machine.directory)
            for device, _, _ in scenario.keep.clients:
                machine.attach(device)
            os.write(say_ready, b"!")
            os.read(stop, 1)
            for lock in locks:
                lock.release()

        self._child = Child(keep)
        os.close(stop)
        os.close(say_ready)
        arrived = os.read(ready, 1)
        os.close(ready)
        if not arrived:
            self._child.result()

    def end(self) -> None:
        """Let go of everything."""
        os.close(self._stop)
        self._child.result()


def prepare(folder: Path, boards: Sequence[str], seed: int, *, time_scale: float = 0.0) -> Scenario:
    """A machine with GPUs in every state that they have between commands; nobody holds anything yet."""
    folder.mkdir(parents=True)
    node = node_of(folder, *boards, time_scale=time_scale)

    def live() -> tuple[Keep, tuple[str, ...]]:
        with node.host() as host:
            life = _Life(host, random.Random(f"life {seed} {boards}"))
            for gpu in host.view().node:
                life.cut(gpu)
            for gpu in host.view().node:
                life.use(gpu)
            return Keep(tuple(life.held), tuple(life.clients)), tuple(life.dead)

    keep, dead = Child(live).result()
    node.watch.unlink(missing_ok=True)
    return Scenario(node, keep, dead)


class _Life:
    """What happened on the machine before the scenario begins."""

    def __init__(self, host: Host, rng: random.Random) -> None:
        self._host = host
        self._rng = rng
        self._locks: list[HeldAllocation] = []
        self.held: list[tuple[str, str, InstanceKey | None]] = []
        self.clients: list[tuple[str, str, InstanceKey | None]] = []
        self.dead: list[str] = []

    def cut(self, gpu: GpuState) -> None:
        """Turn MIG mode on, most of the time, and create some instances, of Tranche's own and of others."""
        rng = self._rng
        if not gpu.mig_capable or rng.random() < 0.15:
            return
        self._change(enable(gpu))
        gpu = self._host.driver.observe_gpu(gpu.uuid)
        for profile, spot in some_slots(gpu, (), rng, most=rng.randint(1, 6)):
            step = CreateInstance(gpu.uuid, profile.name, spot, some_slices(profile, rng))
            if rng.random() < 0.6:
                self._change([step])
                continue
            number = self._host.driver.create_gpu_instance(gpu.uuid, profile.name, spot)
            for name in step.slices if rng.random() < 0.8 else ():
                self._host.driver.create_compute_instance(gpu.uuid, number, name)

    def use(self, gpu: GpuState) -> None:
        """Give some of it to allocations, living and dead, to pods, to several together, and to programs of nobody's."""
        rng = self._rng
        if not gpu.mig_enabled:
            if rng.random() < 0.3:
                self._allocate(gpu, None)
            elif rng.random() < 0.2:
                self._share(gpu, WholeGpu(gpu.uuid))
            elif rng.random() < 0.3:
                self.clients.append((gpu.uuid, gpu.uuid, None))
            return
        for instance in gpu.instances:
            if instance.whole_slice is not None and rng.random() < 0.35:
                self._allocate(gpu, instance)
            elif instance.whole_slice is not None and rng.random() < 0.2:
                self._share(gpu, Slice(gpu.uuid, instance.profile, instance.placement))
            elif instance.compute_instances and rng.random() < 0.4:
                self._attach(gpu, instance)

    def _share(self, gpu: GpuState, device: WholeGpu | Slice) -> None:
        """Give the device to a pod alone, or parts of it to several pods."""
        memory = memory_of(device, gpu)
        count = self._rng.randint(1, 3)
        grants: list[Grant] = (
            [device] if count == 1 or memory == 0 else [FractionalShare(device, memory // count, Sharing.MPS)] * count
        )
        for number, grant in enumerate(grants):
            keeper = PodKeeper("nvidia.com/gpu", "ns", f"pod-{number}", "main", f"uid-{number}", "run")
            name = self._host.add_holder(keeper, nearest_request((grant,)), (grant,), memory={device: memory})
            self.held.append((name, gpu.uuid, device.slot))

    def _allocate(self, gpu: GpuState, instance: GpuInstance | None) -> None:
        if instance is None:
            grant: WholeGpu | Slice = WholeGpu(gpu.uuid)
            request, key = Request(WholeGpus(1)), None
        else:
            grant = Slice(gpu.uuid, instance.profile, instance.placement)
            request, key = Request(MigSlice(instance.profile)), gpu.key(instance)
        ticket = self._host.enqueue(request, command="work", pid=os.getpid())
        held = start_share(self._host, ticket, lambda view: Granted((grant,), Plan("reuse"), "mig", "as it is"))
        assert isinstance(held, HeldAllocation)
        self._locks.append(held)
        if self._rng.random() < 0.3:
            self.dead.append(held.allocation.id)
            return
        self.held.append((held.allocation.id, gpu.uuid, key))
        if instance is not None and self._rng.random() < 0.4:
            self._attach(gpu, instance)

    def _attach(self, gpu: GpuState, instance: GpuInstance) -> None:
        device = self._rng.choice(instance.compute_instances)
        self.clients.append((device.uuid, gpu.uuid, gpu.key(instance)))

    def _change(self, steps: Sequence[Step]) -> None:
        self._host.change(lambda view: Plan("before", tuple(steps)))


def some_slots(
    gpu: GpuState, taken: Sequence[PlacedInstance], rng: random.Random, *, most: int
) -> list[tuple[GpuInstanceProfile, Placement]]:
    """A random set of instances that fit beside those taken."""
    occupants = list(taken)
    chosen = []
    for _ in range(most):
        profile = rng.choice([each for each in gpu.profiles if each.starts])
        if spots := free_placements(profile, occupants):
            spot = rng.choice(spots)
            occupants.append(PlacedInstance(profile.name, spot))
            chosen.append((profile, spot))
    return chosen


def some_slices(profile: GpuInstanceProfile, rng: random.Random) -> tuple[ProfileName, ...]:
    """How such an instance is cut inside: most of the time not at all."""
    if profile.slices == 1 or profile.name.has_attributes or rng.random() < 0.7:
        return (profile.name,)
    single = ProfileName(profile.name.slices, profile.name.memory_gb, 1)
    return (single,) * rng.randint(1, profile.slices)


def random_plan(view: NodeView, keep: Keep, rng: random.Random, *, spiteful: float) -> Plan:
    """A change of some GPUs. With the chance `spiteful` per GPU it asks for what must be refused."""
    steps: list[Step] = []
    for gpu in view.node:
        if gpu.mig_capable and rng.random() < 0.8:
            steps += _recut(gpu, keep, rng, spite=rng.random() < spiteful)
    return Plan(f"random plan {rng.random():.6f}", tuple(steps))


def _recut(gpu: GpuState, keep: Keep, rng: random.Random, *, spite: bool) -> list[Step]:
    if not gpu.mig_enabled:
        used = gpu.uuid in keep.gpus
        return [] if used and not spite else [*enable(gpu), *_creations(gpu, (), rng)]
    firm = [instance for instance in gpu.instances if gpu.key(instance) in keep.slots]
    loose = [instance for instance in gpu.instances if instance not in firm]
    if not firm and rng.random() < 0.2:
        return [*(_destruction(gpu, instance) for instance in loose), *disable(gpu)]
    gone = [instance for instance in loose if rng.random() < 0.6]
    if spite and firm:
        gone.append(rng.choice(firm))
    left = [PlacedInstance(i.profile, i.placement) for i in gpu.instances if i not in gone]
    return [*(_destruction(gpu, instance) for instance in gone), *_creations(gpu, left, rng)]


def _destruction(gpu: GpuState, instance: GpuInstance) -> DestroyInstance:
    return DestroyInstance(gpu.uuid, instance.profile, instance.placement)


def _creations(gpu: GpuState, left: Sequence[PlacedInstance], rng: random.Random) -> list[Step]:
    return [
        CreateInstance(gpu.uuid, profile.name, spot, some_slices(profile, rng))
        for profile, spot in some_slots(gpu, left, rng, most=rng.randint(1, 4))
    ]


def random_request(view: NodeView, rng: random.Random) -> Request:
    """A request that some GPU on the machine could serve."""
    gpu = rng.choice([each for each in view.node if each.profiles])
    if rng.random() < 0.15:
        return Request(WholeGpus(1))
    return Request(MigSlice(rng.choice([profile.name for profile in gpu.profiles if profile.starts])))
