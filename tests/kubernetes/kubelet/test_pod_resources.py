"""The pod-resources reader against a real gRPC server on a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.kubernetes.waiting import patiently
from tests.node.processes import isolated
from tranche.core.errors import KubeletUnavailable
from tranche.kubernetes.kubelet.pod_resources import ContainerDevices, PodResourcesClient
from tranche.kubernetes.kubelet.proto.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse


@asynccontextmanager
async def kubelet(socket: Path, answer: ListPodResourcesResponse) -> AsyncIterator[None]:
    """A kubelet that gives that answer."""

    async def answered(request: ListPodResourcesRequest, context: object) -> ListPodResourcesResponse:
        return answer

    handler = grpc.unary_unary_rpc_method_handler(
        answered,
        request_deserializer=ListPodResourcesRequest.FromString,
        response_serializer=ListPodResourcesResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})])
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def answer_of(*held: tuple[str, str, str, list[str]]) -> ListPodResourcesResponse:
    answer = ListPodResourcesResponse()
    for pod, container, resource, ids in held:
        found = answer.pod_resources.add(namespace="ns", name=pod).containers.add(name=container)
        found.devices.add(resource_name=resource, device_ids=ids)
    return answer


@isolated
def test_each_device_is_its_pods_whatever_the_container_and_others_devices_do_not_count(tmp_path: Path) -> None:
    answer = answer_of(
        ("one", "main", "nvidia.com/mig-1g.5gb", ["MIG-a"]),
        ("one", "side", "nvidia.com/gpu", ["GPU-b"]),
        ("two", "main", "nvidia.com/gpu.shared", ["GPU-c::3"]),
        ("three", "main", "vendor.example/nic", ["eth0"]),
    )

    async def run() -> None:
        async with kubelet(tmp_path / "kubelet.sock", answer):
            held = await patiently(PodResourcesClient(tmp_path / "kubelet.sock").read())
        assert held.listed == (
            ContainerDevices("ns", "one", "main", "nvidia.com/mig-1g.5gb", ("MIG-a",)),
            ContainerDevices("ns", "one", "side", "nvidia.com/gpu", ("GPU-b",)),
            ContainerDevices("ns", "two", "main", "nvidia.com/gpu.shared", ("GPU-c::3",)),
        )

    asyncio.run(run())


@isolated
def test_a_restarted_kubelet_is_reached_again(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"

    async def run() -> None:
        reader = PodResourcesClient(socket)
        with pytest.raises(KubeletUnavailable) as caught:
            await patiently(reader.read())
        assert str(socket) in caught.value.hint
        runs = []
        for pod in ("one", "two"):
            async with kubelet(socket, answer_of((pod, "main", "nvidia.com/gpu", ["GPU-a"]))):
                word = await patiently(reader.read())
                assert [(each.name, each.device_ids) for each in word.listed] == [(pod, ("GPU-a",))]
                assert word.run == reader.run()
                runs.append(word.run)
            socket.unlink(missing_ok=True)
            with pytest.raises(KubeletUnavailable):
                await patiently(reader.read())
        assert len(set(runs)) == 2, "another run of the kubelet has another name"
        assert reader.run() == ""

    asyncio.run(run())


@isolated
def test_devices_of_claims_are_listed_by_their_names_for_the_runtime(tmp_path: Path) -> None:
    answer = answer_of(("one", "main", "nvidia.com/gpu", ["GPU-b"]))
    for name in ("tranche.dev/share=u-1-0", "vendor.example/nic=eth0"):
        container = answer.pod_resources.add(namespace="ns", name="two").containers.add(name="main")
        container.dynamic_resources.add().claim_resources.add().cdi_devices.add(name=name)

    async def run() -> None:
        async with kubelet(tmp_path / "kubelet.sock", answer):
            word = await patiently(PodResourcesClient(tmp_path / "kubelet.sock").read())
        assert word.by_claims == {"tranche.dev/share=u-1-0", "vendor.example/nic=eth0"}

    asyncio.run(run())
