"""Servers and registrations against a kubelet on real sockets; time is the test's own."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import grpc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kubernetes.device_plugin.kubelet import KubeletStandIn, until
from tests.node.processes import in_child
from tests.support.length import cases
from tranche.core.errors import GpuBusy, KubeletUnavailable
from tranche.hardware.nodes import DeviceNode, Mount
from tranche.kubernetes.device_plugin.allocate import ContainerResponse
from tranche.kubernetes.device_plugin.device_list import GRACE_SECONDS, ListedDevice
from tranche.kubernetes.device_plugin.endpoints import LINGER_SECONDS, ResourceServerManager
from tranche.kubernetes.device_plugin.server import ResourceServer, register
from tranche.kubernetes.kubelet.pod_resources import socket_run

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"


class Answers:
    """An allocator that answers with what it was asked."""

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> ContainerResponse:
        if "refused" in device_ids:
            raise GpuBusy("refused", hint="ask for another")
        return ContainerResponse(
            environment={"IDS": ",".join(device_ids)},
            mounts=(Mount("/a", "/b"),),
            device_nodes=(DeviceNode("/dev/x", "/dev/y", "rw"),),
            annotations={"k": "v"},
            cdi_devices=("a.b/c=d",),
        )

    async def prefer(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        return sorted(available)[:size]


class Rig:
    """A kubelet, endpoints, and a clock that moves a little with each settling."""

    def __init__(self, folder: Path) -> None:
        self.kubelet = KubeletStandIn(folder / "plugins")
        self.now = 100.0
        self.endpoints = ResourceServerManager(self.kubelet.folder, self.kubelet.socket, Answers(), lambda: self.now)
        self.wanted: Mapping[str, Sequence[ListedDevice]] = {}

    async def settle_until(self, condition: Callable[[], bool], what: str) -> None:
        """Settle again and again, as the plugin does, until the condition holds."""
        for _ in itertools.count():
            await self.endpoints.settle(self.wanted)
            if condition():
                return
            self.now += 0.1  # ten times as fast as the machine; a pause must still outlast the kubelet's call
            await asyncio.sleep(0.01)
            assert self.now < 3000, what

    async def settle_until_known(self, what: str) -> None:
        """Settle until the endpoints are ready and the kubelet, which takes a list after it was sent, has what is wanted."""
        await self.settle_until(lambda: self.endpoints.ready().ready and self.kubelet.knows(self.wanted), what)


def devices(*names: str) -> tuple[ListedDevice, ...]:
    return tuple(ListedDevice(name, numa_node=0) for name in names)


def run(folder: Path, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig(folder)
        await rig.kubelet.start()
        try:
            await scenario(rig)
        finally:
            await rig.endpoints.close()
            await rig.kubelet.stop()

    in_child(lambda: asyncio.run(main()))


def test_resources_are_registered_and_listed(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {GPU: (), SLICE: (*devices("a"), ListedDevice("b", healthy=False))}
        await rig.settle_until_known("the kubelet has the lists")
        assert rig.kubelet.counts() == {GPU: (0, 0), SLICE: (2, 1)}
        assert [node.ID for node in rig.kubelet.devices[SLICE]["a"].topology.nodes] == [0], "NUMA node 0 is one too"
        assert not rig.kubelet.devices[SLICE]["b"].HasField("topology")
        (request,) = [each for each in rig.kubelet.registrations if each.resource_name == SLICE]
        assert (request.version, request.endpoint) == ("v1beta1", "tranche-mig-1g.5gb.sock")
        assert request.options.get_preferred_allocation_available
        assert (await rig.kubelet.options(SLICE)).get_preferred_allocation_available

    run(tmp_path, scenario)


def test_answers_reach_the_kubelet_whole(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {SLICE: devices("a", "b", "refused")}
        await rig.settle_until_known("registered")
        answer = await rig.kubelet.allocate(SLICE, "a", "b")
        assert dict(answer.envs) == {"IDS": "a,b"}
        assert [(mount.host_path, mount.container_path, mount.read_only) for mount in answer.mounts] == [
            ("/a", "/b", True)
        ]
        (device,) = answer.devices
        assert (device.host_path, device.container_path, device.permissions) == ("/dev/x", "/dev/y", "rw")
        assert dict(answer.annotations) == {"k": "v"}
        assert [each.name for each in answer.cdi_devices] == ["a.b/c=d"]
        assert await rig.kubelet.prefer(SLICE, ["b", "a"], 1) == ["a"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rig.kubelet.allocate(SLICE, "refused")
        assert refused.value.details() == "refused; ask for another"

    run(tmp_path, scenario)


def test_a_changed_list_is_sent_without_a_new_registration(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {SLICE: devices("a")}
        await rig.settle_until_known("registered")
        rig.wanted = {SLICE: devices("a", "b", "c")}
        await rig.endpoints.settle(rig.wanted)
        assert not rig.endpoints.ready().ready, "the kubelet does not have the new list yet"
        await until(lambda: rig.kubelet.counts() == {SLICE: (3, 3)}, "the new list")
        await until(lambda: rig.endpoints.ready().ready, "ready again")
        assert len(rig.kubelet.registrations) == 1

    run(tmp_path, scenario)


def test_a_vanished_resource_goes_to_zero_before_it_is_withdrawn(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {GPU: devices("g"), SLICE: devices("a")}
        await rig.settle_until_known("registered")
        rig.wanted = {GPU: devices("g")}
        begun = rig.now
        await rig.endpoints.settle(rig.wanted)
        await until(lambda: rig.kubelet.counts()[SLICE] == (1, 0), "none is healthy")
        await rig.settle_until(lambda: rig.kubelet.counts()[SLICE] == (0, 0), "it goes to zero")
        assert rig.now - begun >= GRACE_SECONDS
        assert rig.kubelet.ended == []
        await rig.settle_until(lambda: SLICE in rig.kubelet.ended, "it is withdrawn")
        assert rig.now - begun >= GRACE_SECONDS + LINGER_SECONDS
        assert not list(rig.kubelet.folder.glob("tranche-mig*"))
        assert rig.kubelet.counts()[GPU] == (1, 1)
        rig.wanted = {GPU: devices("g"), SLICE: devices("b")}
        await rig.settle_until(lambda: rig.kubelet.counts()[SLICE] == (1, 1), "it comes back")

    run(tmp_path, scenario)


def test_a_resource_that_comes_back_in_time_keeps_its_registration(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {SLICE: devices("a")}
        await rig.settle_until_known("registered")
        # More than one if the kubelet was slow to ask: this clock is faster than the machine's.
        before = len(rig.kubelet.registrations)
        await rig.endpoints.settle({})
        rig.now += LINGER_SECONDS - 1
        await rig.endpoints.settle({})
        rig.now += LINGER_SECONDS - 1
        await rig.settle_until(lambda: rig.kubelet.counts() == {SLICE: (1, 1)}, "listed again")
        assert len(rig.kubelet.registrations) == before

    run(tmp_path, scenario)


def test_a_restarted_kubelet_is_noticed_by_its_socket(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {GPU: (), SLICE: devices("a")}
        await rig.settle_until_known("registered")
        before = socket_run(rig.kubelet.socket)
        await rig.kubelet.stop()
        rig.kubelet.socket.unlink(missing_ok=True)
        await rig.endpoints.settle(rig.wanted)
        assert not rig.endpoints.ready().ready
        assert "no kubelet" in rig.endpoints.ready().why
        await rig.kubelet.start()
        assert socket_run(rig.kubelet.socket) != before
        await rig.settle_until_known("registered with the new one")
        assert rig.kubelet.counts() == {GPU: (0, 0), SLICE: (1, 1)}
        assert len(rig.kubelet.registrations) == 4

    run(tmp_path, scenario)


def test_a_kubelet_that_comes_late_or_refuses_is_tried_again(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.kubelet.stop()
        rig.kubelet.socket.unlink(missing_ok=True)
        rig.wanted = {SLICE: devices("a")}
        for _ in range(3):
            await rig.endpoints.settle(rig.wanted)
            rig.now += 1
        assert "no kubelet" in rig.endpoints.ready().why
        rig.kubelet.refuse = True
        await rig.kubelet.start()
        await rig.settle_until(lambda: "not now" in rig.endpoints.ready().why, "the refusal is told")
        rig.kubelet.refuse = False
        await rig.settle_until_known("registered at last")

    run(tmp_path, scenario)


def test_a_dead_kubelet_that_left_its_socket_is_not_taken_for_a_living_one(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {SLICE: devices("a")}
        await rig.settle_until_known("registered")
        os.link(rig.kubelet.socket, tmp_path / "left")
        await rig.kubelet.stop()
        if not rig.kubelet.socket.exists():
            os.link(tmp_path / "left", rig.kubelet.socket)
        await rig.settle_until(lambda: "cannot register" in rig.endpoints.ready().why, "nobody answers")

    run(tmp_path, scenario)


def test_a_lost_socket_of_a_plugin_is_made_again(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {SLICE: devices("a")}
        await rig.settle_until_known("registered")
        (rig.kubelet.folder / "tranche-mig-1g.5gb.sock").unlink()
        await rig.settle_until(lambda: len(rig.kubelet.registrations) == 2, "registered anew")
        await rig.settle_until_known("ready again")

    run(tmp_path, scenario)


class OtherPlugin:
    """A plugin for one slice resource that registers once, as NVIDIA's does."""

    def __init__(self, rig: Rig) -> None:
        self.kubelet = rig.kubelet
        self.endpoint = ResourceServer(SLICE, rig.kubelet.folder, Answers(), lambda: rig.now)
        self.endpoint.socket = rig.kubelet.folder / "nvidia-mig-1g.5gb.sock"

    async def start(self, *names: str) -> None:
        self.endpoint.update(devices(*names))
        await self.endpoint.start()
        await register(self.kubelet.socket, endpoint=self.endpoint.socket.name, resource=SLICE)
        await until(lambda: self.endpoint.delivered, "it is listened to")


def test_a_plugin_that_ends_late_does_not_take_the_resource_along(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        other = OtherPlugin(rig)
        await other.start("x")
        rig.wanted = {SLICE: devices("a", "b")}
        await rig.settle_until_known("taken over")
        await other.endpoint.stop()
        await until(lambda: SLICE in rig.kubelet.ended, "the kubelet gives up the newest client")
        await rig.settle_until(lambda: len(rig.kubelet.registrations) == 3, "registered again")
        await rig.settle_until_known("ready again")
        assert rig.kubelet.counts() == {SLICE: (2, 2)}

    run(tmp_path, scenario)


def test_a_resource_that_another_plugin_has_taken_over_is_withdrawn_only_after_its_end(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.wanted = {GPU: devices("g"), SLICE: devices("a")}
        await rig.settle_until_known("registered")
        rig.wanted = {GPU: devices("g")}
        await rig.settle_until(lambda: rig.kubelet.counts()[SLICE] == (0, 0), "it goes to zero")
        other = OtherPlugin(rig)
        await other.start("x", "y")
        for _ in range(20):
            rig.now += LINGER_SECONDS
            await rig.endpoints.settle(rig.wanted)
        await asyncio.sleep(0.1)
        assert rig.kubelet.counts()[SLICE] == (2, 2)
        assert other.endpoint.watched, "its client was not given up"
        await other.endpoint.stop()
        await rig.settle_until(lambda: not rig.endpoints.another_serves(SLICE), "it is gone")
        own = rig.kubelet.folder / "tranche-mig-1g.5gb.sock"
        await rig.settle_until(lambda: not own.exists(), "withdrawn")

    run(tmp_path, scenario)


LISTS = st.dictionaries(
    st.sampled_from([GPU, SLICE, "nvidia.com/mig-2g.10gb"]), st.lists(st.sampled_from("abcd"), unique=True), max_size=3
)
HAPPENINGS = st.lists(st.sampled_from(["restart", "refuse", "accept", "lose a socket", "gone"]) | LISTS, max_size=6)


@settings(max_examples=cases(60))
@example(  # its socket is lost while the kubelet refuses, and then nobody wants the resource any more
    happenings=[
        {SLICE: ["a"], GPU: ["a", "b", "c"], "nvidia.com/mig-2g.10gb": []},
        "refuse",
        {"nvidia.com/mig-2g.10gb": ["c", "d", "a"], SLICE: ["a"], GPU: ["a", "d"]},
        "lose a socket",
        {},
        {SLICE: [], "nvidia.com/mig-2g.10gb": ["b", "c", "a"]},
    ],
    last={GPU: []},
)
@given(happenings=HAPPENINGS, last=LISTS)
def test_whatever_happens_the_kubelet_ends_up_knowing_what_is_wanted(
    happenings: list[str | dict[str, list[str]]], last: dict[str, list[str]]
) -> None:
    async def scenario(rig: Rig) -> None:
        for happening in [*happenings, "accept", last]:
            if isinstance(happening, dict):
                rig.wanted = {name: devices(*ids) for name, ids in happening.items()}
            elif happening in ("restart", "gone"):
                if rig.kubelet.socket.exists():
                    await rig.kubelet.stop()
                    rig.kubelet.socket.unlink(missing_ok=True)
                if happening == "restart":
                    await rig.kubelet.start()
            elif happening == "lose a socket":
                for socket in list(rig.kubelet.folder.glob("tranche-*"))[:1]:
                    socket.unlink()
            else:
                rig.kubelet.refuse = happening == "refuse"
            await rig.endpoints.settle(rig.wanted)
            rig.now += 0.5
            await asyncio.sleep(0)
        if not rig.kubelet.socket.exists():
            await rig.kubelet.start()
        wanted = {name: (len(ids), len(ids)) for name, ids in last.items()}

        def known() -> bool:
            counts = rig.kubelet.counts()
            left = {name: count for name, count in counts.items() if name not in wanted}
            return {**wanted, **left} == counts and set(left.values()) <= {(0, 0)}

        await rig.settle_until(known, f"{rig.kubelet.counts()} should be {wanted}")
        await rig.settle_until_known("and it says so")

    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), scenario)


def test_a_folder_that_takes_no_socket_is_said(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        (tmp_path / "file").touch()
        for folder in (tmp_path / "file", tmp_path / ("x" * 120)):
            endpoints = ResourceServerManager(folder, None, Answers(), lambda: rig.now)
            with pytest.raises(KubeletUnavailable, match=f"cannot serve {SLICE} on {folder}"):
                await endpoints.settle({SLICE: devices("a")})
            await endpoints.close()

    run(tmp_path, scenario)


def test_without_a_kubelet_socket_nothing_is_announced(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        endpoints = ResourceServerManager(rig.kubelet.folder, None, Answers(), lambda: rig.now)
        await endpoints.settle({SLICE: devices("a")})
        assert endpoints.ready().ready
        assert not rig.kubelet.registrations
        assert (rig.kubelet.folder / "tranche-mig-1g.5gb.sock").exists()
        await endpoints.close()

    run(tmp_path, scenario)
