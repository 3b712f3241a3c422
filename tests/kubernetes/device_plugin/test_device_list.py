"""How devices leave a list: whatever is offered when, a kubelet that is slow finds in its list what it was given."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tranche.kubernetes.device_plugin.device_list import GRACE_SECONDS, DeviceList, ListedDevice

NAMES = ("a", "b", "c")
SLOW_SECONDS = GRACE_SECONDS / 2
"""The longest time that the kubelet takes for each of its steps."""


class Crash(Exception):
    """The kubelet read a device that is not in its list."""


@dataclass
class Allocation:
    """One that the kubelet has begun: chosen, then asked for, then answered. `since` is when the last of these was."""

    device: str
    since: float
    stage: str = "chosen"


class Kubelet:
    """The kubelet's steps: each takes at most `SLOW_SECONDS`, and happens in any order beside the others."""

    def __init__(
        self, rng: random.Random, leave: Callable[[DeviceList, Sequence[ListedDevice], float], DeviceList]
    ) -> None:
        self.rng, self._leave = rng, leave
        self.now = 0.0
        self.list = DeviceList()
        self.under_way: list[tuple[float, tuple[ListedDevice, ...]]] = []
        self.devices: dict[str, bool] = {}
        self.allocations: list[Allocation] = []
        self.reusable: dict[str, float] = {}
        self.refused = 0

    @property
    def allocating(self) -> bool:
        return any(each.stage == "asked" for each in self.allocations)

    def live(self) -> None:
        """Take many steps."""
        for _ in range(600):
            self.step()

    def step(self) -> None:
        """Some time goes by, and then something happens; what must not take longer happens first."""
        self.now += self.rng.choice((0.01, 0.5, SLOW_SECONDS / 3))
        while self.under_way and self.now - self.under_way[0][0] > SLOW_SECONDS:
            self.takes_a_list()
        for each in [each for each in self.allocations if each.stage != "asked"]:
            if self.now - each.since > SLOW_SECONDS:
                self.goes_on(each)
        self.rng.choice((self.plugin_offers, self.chooses, self.some_goes_on, self.takes_a_list, self.takes_a_list))()

    def plugin_offers(self) -> None:
        offered = [ListedDevice(name) for name in NAMES if self.rng.random() < 0.6]
        before = self.list.told
        self.list = self._leave(self.list, offered, self.now) if self._may_leave() else self._keep(offered)
        if self.list.told != before:
            self.under_way.append((self.now, self.list.told))

    def chooses(self) -> None:
        healthy = [name for name, well in self.devices.items() if well]
        healthy += [name for name, since in self.reusable.items() if self.now - since < SLOW_SECONDS]
        if healthy:
            self.allocations.append(Allocation(self.rng.choice(sorted(healthy)), self.now))

    def some_goes_on(self) -> None:
        if self.allocations:
            self.goes_on(self.rng.choice(self.allocations))

    def goes_on(self, each: Allocation) -> None:
        if each.stage == "chosen" and each.device not in self.list.ids:
            self.refused += 1
            self.allocations.remove(each)
        elif each.stage == "chosen":
            each.stage = "asked"
        elif each.stage == "asked" and self.rng.random() < 0.2:
            self.allocations.remove(each)
        elif each.stage == "asked":
            self.list = self.list.grant([each.device], self.now)
            each.stage, each.since = "answered", self.now
        else:
            if each.device not in self.devices:
                raise Crash(each.device)
            self.reusable[each.device] = self.now
            self.allocations.remove(each)

    def takes_a_list(self) -> None:
        if self.under_way:
            self.devices = {each.id: each.healthy for each in self.under_way.pop(0)[1]}

    def _may_leave(self) -> bool:
        return not self.allocating

    def _keep(self, offered: Sequence[ListedDevice]) -> DeviceList:
        return self.list.offer(offered, self.now, known=NAMES, kept=True)


def by_the_rule(devices: DeviceList, offered: Sequence[ListedDevice], now: float) -> DeviceList:
    return devices.offer(offered, now, known=NAMES, kept=False)


def at_once(devices: DeviceList, offered: Sequence[ListedDevice], now: float) -> DeviceList:
    return DeviceList(tuple(offered))


@given(st.integers(0, 2**32))
def test_a_slow_kubelet_finds_what_it_was_given(seed: int) -> None:
    kubelet = Kubelet(random.Random(seed), by_the_rule)
    kubelet.live()


def test_a_kubelet_crashes_where_devices_leave_at_once() -> None:
    kubelets = [Kubelet(random.Random(seed), at_once) for seed in range(100)]
    assert any(map(crashes, kubelets))


def crashes(kubelet: Kubelet) -> bool:
    try:
        kubelet.live()
    except Crash:
        return True
    return False


def listed(devices: DeviceList) -> dict[str, bool]:
    return {each.id: each.healthy for each in devices.told}


def offer(devices: DeviceList, names: str, now: float, *, known: str = "ab", kept: bool = False) -> DeviceList:
    return devices.offer([ListedDevice(name, numa_node=1) for name in names], now, known=known, kept=kept)


def test_what_leaves_is_unhealthy_first_and_absent_later() -> None:
    devices = offer(offer(DeviceList(), "ab", 0.0), "a", 10.0)
    assert listed(devices) == {"a": True, "b": False}
    assert {each.numa_node for each in devices.told} == {1}
    assert listed(offer(devices, "a", 10.0 + GRACE_SECONDS - 1)) == {"a": True, "b": False}
    assert listed(offer(devices, "a", 10.0 + GRACE_SECONDS)) == {"a": True}
    assert listed(offer(devices, "ab", 10.0 + GRACE_SECONDS)) == {"a": True, "b": True}, "it comes back"


def test_what_was_given_away_stays_after_the_answer() -> None:
    devices = offer(offer(DeviceList(), "ab", 0.0), "a", 10.0).grant(["b"], 20.0)
    assert listed(offer(devices, "a", 20.0 + GRACE_SECONDS - 1)) == {"a": True, "b": False}
    assert listed(offer(devices, "a", 20.0 + GRACE_SECONDS)) == {"a": True}


def test_nothing_leaves_while_an_allocation_is_under_way() -> None:
    devices = offer(offer(DeviceList(), "ab", 0.0), "a", 10.0)
    devices = offer(devices, "a", 100.0, kept=True)
    assert listed(devices) == {"a": True, "b": False}
    assert listed(offer(devices, "a", 100.0)) == {"a": True}


def test_what_no_kubelet_was_told_leaves_at_once() -> None:
    assert listed(offer(offer(DeviceList(), "ab", 0.0), "a", 1.0, known="a")) == {"a": True}
