"""Device plugin and claims never offer one device both ways, whatever comes between: by what kubelet, scheduler and API see.

The world is a kubelet, a node's status, ResourceSlices and an agent that hears of each later, is killed, and begins anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import gpu_on, view_of
from tranche.core.allocation import Allocation, Grant, NodeView, Phase, Slice, WholeGpu, overlap
from tranche.core.board import board_by_key
from tranche.core.grid import Placement
from tranche.core.keeper import ClaimKeeper, Keeper, PodKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Request, WholeGpus
from tranche.core.state import NodeState
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.device_plugin.device_list import (
    STATUS_SECONDS,
    Grants,
    KubeletDevices,
    ListableDevice,
    ListedDevice,
    ListedDevices,
    listed,
)
from tranche.kubernetes.device_plugin.offers import held_otherwise
from tranche.kubernetes.devices.devices import NodeDevice, devices_of
from tranche.kubernetes.devices.taints import TaintFacts, excludes, reasons_against
from tranche.kubernetes.dra.pool import (
    ClaimableDevices,
    PluginGrants,
    counted_otherwise,
    open_gpus,
    shown_in,
    to_claims,
)
from tranche.kubernetes.node.advertisement_arbiter import PluginAdvertisement

WATCH_SECONDS = 2.0
"""How late a watch may be: the device plugin counts on the node's status within `STATUS_SECONDS` of the kubelet's knowledge."""
GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
UUIDS = ("GPU-0", "GPU-1")


def node() -> NodeState:
    board = board_by_key("A100-40GB")
    assert board is not None
    return NodeState(tuple(replace(gpu_on(board, index), uuid=uuid) for index, uuid in enumerate(UUIDS)))


NODE = node()
DEVICES = {each.name: each for each in devices_of(NODE)}
SLICES = tuple(Slice(UUIDS[1], parse_profile("1g.5gb"), Placement(start, 1)) for start in (0, 1))
PLUGIN_DEVICES: Grants = {
    GPU: {UUIDS[0]: WholeGpu(UUIDS[0])},
    SLICE: {f"MIG-{each.placement.start}": each for each in SLICES},
}

Content = Mapping[str, Mapping[str, bool]]
"""What ResourceSlices show: of each GPU by UUID, each device by name, and whether it is free."""


def shown(content: Content) -> ClaimableDevices:
    return ClaimableDevices.of(
        {"name": name, "attributes": {"uuid": {"string": uuid}}, "taints": [] if free else [{}]}
        for uuid, devices in content.items()
        for name, free in devices.items()
    )


@dataclass
class Agent:
    """What one process knows: the node's mode and status, the slices, and what it has said to itself."""

    mode: NodeMode = NodeMode.OFF
    status: Mapping[str, str] | None = None
    slices: Content | None = None
    allocations: tuple[Allocation, ...] | None = None
    counted: ListedDevices = field(default_factory=ListedDevices)
    offer: PluginAdvertisement | None = None
    opening: frozenset[str] = frozenset()
    heard: dict[str, frozenset[str]] = field(default_factory=dict)
    sent: dict[str, Mapping[str, Grant]] = field(default_factory=dict)
    opened: frozenset[str] | None = None
    writing_mode: NodeMode = NodeMode.OFF
    writes: list[tuple[str, Mapping[str, bool]]] = field(default_factory=list)
    behind: bool = False
    """It has given a pod a device since it read the register; the publisher waits for the look that this asks for."""

    @property
    def view(self) -> NodeView:
        assert self.allocations is not None
        return replace(view_of(*NODE.gpus), allocations=self.allocations)

    @property
    def to_claims(self) -> frozenset[str] | None:
        return None if self.slices is None else to_claims(shown(self.slices), self.opening)


class TwoWays:
    """A node whose mode changes; the agent may be killed between any two steps."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.past: list[str] = []
        self.mode = NodeMode.STATIC
        self.kubelet: dict[str, Mapping[str, Grant]] = {}
        self.status: dict[str, Mapping[str, Grant]] = {}
        self.api: dict[str, Mapping[str, bool]] = {}
        self.allocations: tuple[Allocation, ...] = ()
        self.agent: Agent | None = Agent()
        self.number = self.run = 0
        self.now = self.written = 0.0
        self.unseen = 0.0
        """When the status changed that the agent has not seen; 0 if it has."""

    def step(self) -> None:
        """Something that can happen now does: now and then what nobody wants, else what goes on by itself."""
        acts = self._troubles() if self.rng.random() < 0.08 else self._steps()
        self.now += 0.5
        if self.now - self.written > STATUS_SECONDS - WATCH_SECONDS:
            self.status_is_written()
        if self.unseen and self.now - self.unseen >= WATCH_SECONDS:
            self.agent_sees_the_node()
        act = self.rng.choice([act for act, may in acts if may])
        self.past.append(act.__name__)
        act()
        self.nothing_is_offered_both_ways()

    def calm_down(self) -> None:
        """Everything that goes on by itself does, again and again."""
        for _ in range(60):
            self.now += 1.0
            for act, _ in self._steps():
                if dict(self._steps())[act]:
                    act()
            self.nothing_is_offered_both_ways()

    def administrator_changes_the_mode(self) -> None:
        self.mode = self.rng.choice((NodeMode.STATIC, NodeMode.STATIC, NodeMode.MIXED, NodeMode.MIXED, NodeMode.OFF))

    def status_is_written(self) -> None:
        if self.status != self.kubelet and self.agent is not None:
            self.unseen = self.unseen or self.now
        self.status, self.written = dict(self.kubelet), self.now

    def kubelet_starts_anew(self) -> None:
        self.kubelet, self.run = {}, self.run + 1
        if self.agent is not None:
            self.agent.heard, self.agent.sent = {}, {}

    def agent_is_killed(self) -> None:
        if self.agent is not None and self.agent.writes and self.rng.random() < 0.5:
            self._write(*self.agent.writes[0])
        self.agent, self.kubelet, self.unseen = None, {}, 0.0

    def agent_starts(self) -> None:
        self.agent = Agent()

    def somebody_removes_the_slices(self) -> None:
        self.api = {}

    def agent_sees_the_node(self) -> None:
        self.unseen = 0.0
        self.running.mode = self.mode
        self.running.status = {name: str(len(devices)) for name, devices in self.status.items()}

    def agent_sees_the_slices(self) -> None:
        self.running.slices = dict(self.api)

    def agent_reads_the_register(self) -> None:
        self.running.allocations, self.running.behind = self.allocations, False

    def plugin_looks(self) -> None:
        agent = self.running
        static, view = agent.mode is NodeMode.STATIC, agent.view
        chosen = listed(_listable(view), static=static, to_claims=agent.to_claims)
        devices = {resource: {each.device.id: each.grant for each in members} for resource, members in chosen.items()}
        heard = KubeletDevices(self.run, dict(agent.heard))
        agent.counted = agent.counted.look(devices, heard, agent.status, self.now)
        agent.offer = agent.counted.offer
        for resource, members in devices.items():
            if agent.sent.get(resource, self.kubelet.get(resource)) != members:
                agent.sent[resource] = members
                agent.heard[resource] = agent.heard.get(resource, frozenset()) | members.keys()

    def kubelet_reads_a_list(self) -> None:
        resource = min(self.running.sent)
        self.kubelet[resource] = self.running.sent.pop(resource)
        self.running.heard[resource] = frozenset(self.kubelet[resource])

    def publisher_decides(self) -> None:
        agent = self.running
        if agent.behind:
            self.agent_reads_the_register()
        assert agent.offer is not None
        assert agent.slices is not None
        seen, view = shown(agent.slices), agent.view
        other = PluginGrants(agent.offer.grants, agent.offer.strangers(agent.status or {}))
        held = {
            grant.gpu_uuid for each in view.allocations if isinstance(each.keeper, ClaimKeeper) for grant in each.grants
        }
        opened = open_gpus(agent.mode, view, other, seen, held)
        agent.opening |= shown_in(agent.mode, opened)
        devices = [each for each in DEVICES.values() if each.gpu_uuid in opened]
        against = reasons_against(devices, view, TaintFacts(agent.mode))
        counted = counted_otherwise(devices, other, seen)
        agent.opened, agent.writing_mode = opened, agent.mode
        wanted: dict[str, dict[str, bool]] = {uuid: {} for uuid in UUIDS}
        for each in devices:
            wanted[each.gpu_uuid][each.name] = not against[each.name] and each.name not in counted
        agent.writes = [(uuid, each) for uuid, each in wanted.items() if agent.slices.get(uuid, {}) != each]

    def publisher_writes(self) -> None:
        self._write(*self.running.writes.pop(0))

    def a_write_fails(self) -> None:
        if self.rng.random() < 0.5:
            self._write(*self.running.writes[0])
        self.running.writes, self.running.opened = [], None

    def publisher_has_seen_what_it_wrote(self) -> None:
        agent = self.running
        agent.slices = dict(self.api)
        agent.opening, agent.opened = shown_in(agent.writing_mode, agent.opened or frozenset()), None

    def pod_is_given_a_device(self) -> None:
        free = [
            (resource, grant)
            for resource, devices in self.kubelet.items()
            for grant in devices.values()
            if not any(overlap(grant, other) for other in self._grants())
        ]
        if free:
            resource, grant = self.rng.choice(free)
            self._give(PodKeeper(resource, "ns", f"pod-{self.number}", "main", f"p{self.number}", "run"), grant)
            if self.agent is not None:
                self.agent.behind = True

    def claim_is_given_a_device(self) -> None:
        free = [
            DEVICES[name]
            for devices in self.api.values()
            for name, free in devices.items()
            if free and not any(overlap(DEVICES[name].offered, grant) for grant in self._grants())
        ]
        if free:
            device: NodeDevice = self.rng.choice(free)
            self._give(ClaimKeeper("ns", f"claim-{self.number}", f"c{self.number}"), device.offered)

    def somebody_ends(self) -> None:
        gone = self.rng.choice(self.allocations)
        self.allocations = tuple(each for each in self.allocations if each is not gone)

    def nothing_is_offered_both_ways(self) -> None:
        free = [DEVICES[name] for devices in self.api.values() for name, free in devices.items() if free]
        both = [
            (device.name, resource)
            for resource, grant in self._counted()
            for device in free
            if device.gpu_uuid == grant.gpu_uuid and excludes(device, grant)
        ]
        assert not both, f"{both}: {self.past[-60:]}"

    @property
    def running(self) -> Agent:
        assert self.agent is not None
        return self.agent

    def _steps(self) -> Sequence[tuple[Callable[[], None], bool]]:
        """What goes on by itself, and whether it can now."""
        agent = self.agent or Agent()
        alive = self.agent is not None
        return (
            (self.status_is_written, True),
            (self.agent_starts, not alive),
            (self.agent_sees_the_node, alive),
            (self.agent_sees_the_slices, alive),
            (self.agent_reads_the_register, alive and agent.allocations != self.allocations),
            (self.plugin_looks, alive and agent.allocations is not None),
            (self.kubelet_reads_a_list, bool(agent.sent)),
            (self.publisher_decides, self._may_publish(agent)),
            (self.publisher_writes, bool(agent.writes)),
            (self.publisher_has_seen_what_it_wrote, agent.opened is not None and not agent.writes),
        )

    def _troubles(self) -> Sequence[tuple[Callable[[], None], bool]]:
        agent = self.agent or Agent()
        return (
            (self.administrator_changes_the_mode, True),
            (self.administrator_changes_the_mode, True),
            (self.kubelet_starts_anew, True),
            (self.agent_is_killed, self.agent is not None),
            (self.somebody_removes_the_slices, True),
            (self.a_write_fails, bool(agent.writes)),
            (self.pod_is_given_a_device, agent.mode is NodeMode.STATIC),
            (self.claim_is_given_a_device, self.agent is not None),
            (self.somebody_ends, bool(self.allocations)),
        )

    def _counted(self) -> Iterator[tuple[str, Grant]]:
        """What the kubelet gives away, and what the scheduler takes it to give away when the node's status counts more."""
        for resource in PLUGIN_DEVICES:
            here, said = self.kubelet.get(resource, {}), self.status.get(resource, {})
            for name, grant in {**here, **(said if len(said) > len(here) else {})}.items():
                if name in here or not any(overlap(grant, other) for other in self._grants()):
                    yield resource, grant

    def _may_publish(self, agent: Agent) -> bool:
        known: tuple[Any, ...] = (agent.offer, agent.slices, agent.allocations, agent.status)
        return all(each is not None for each in known) and agent.opened is None

    def _grants(self) -> Sequence[Grant]:
        return [grant for each in self.allocations for grant in each.grants]

    def _give(self, keeper: Keeper, grant: Grant) -> None:
        self.number += 1
        made = Allocation(
            f"a{self.number}", Request(WholeGpus(1)), (grant,), Phase.ACTIVE, float(self.number), keeper=keeper
        )
        self.allocations = (*self.allocations, made)

    def _write(self, uuid: str, devices: Mapping[str, bool]) -> None:
        self.api = {name: each for name, each in {**self.api, uuid: devices}.items() if each}


def _listable(view: NodeView) -> dict[str, list[ListableDevice]]:
    found: dict[str, list[ListableDevice]] = {}
    for resource, devices in PLUGIN_DEVICES.items():
        found[resource] = []
        for name, grant in devices.items():
            given = any(
                grant in each.grants and isinstance(each.keeper, PodKeeper) and each.keeper.resource == resource
                for each in view.allocations
            )
            if held_otherwise(grant, resource, view.allocations) is None:
                found[resource].append(ListableDevice(ListedDevice(name), grant, given))
    return found


@given(st.integers(0, 2**32))
def test_no_device_is_ever_offered_both_ways(seed: int) -> None:
    ways = TwoWays(random.Random(seed))
    for _ in range(1500):
        ways.step()


@given(st.integers(0, 2**32), st.sampled_from([NodeMode.STATIC, NodeMode.MIXED]))
def test_what_nobody_has_is_offered_at_last_as_the_mode_says(seed: int, mode: NodeMode) -> None:
    ways = TwoWays(random.Random(seed))
    for _ in range(300):
        ways.step()
    ways.mode, ways.allocations = mode, ()
    ways.calm_down()
    listed = {grant for devices in ways.kubelet.values() for grant in devices.values()}
    free = {name for devices in ways.api.values() for name, free in devices.items() if free}
    if mode is NodeMode.STATIC:
        assert listed == {grant for devices in PLUGIN_DEVICES.values() for grant in devices.values()}
        assert not ways.api
    else:
        assert not listed
        assert free == {each.name for each in DEVICES.values() if each.profile is None or each.sharing is None}
