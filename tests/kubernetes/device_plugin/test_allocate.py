"""What Allocate answers, by device-list strategy, on a driver's host and on a simulated machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kubernetes.device_plugin.nodes import ALL_1G, cut, lost, node, whole
from tranche.hardware.cdi import spec_to_data
from tranche.hardware.nodes import DriverFiles, Mount, SimulatedDeviceFiles
from tranche.kubernetes.device_plugin.allocate import ContainerResponse, cdi_spec, respond
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.device_plugin.settings import DeviceIdStrategy, DeviceListStrategy
from tranche.kubernetes.node.resources import PluginDevice, slices_of
from tranche.node.processes.pod_processes import device_mark

GPU = replace(cut(2, "1g.5gb@0", "1g.5gb@3"), minor=5)
SLICES = tuple(slices_of(GPU))
A, B = (device.uuid for device in SLICES)
MARKS = {device_mark(uuid): uuid for uuid in (A, B)}


@pytest.fixture
def files(tmp_path: Path) -> DriverFiles:
    """A host with control nodes and capability files."""
    for path in ("dev/nvidiactl", "dev/nvidia-uvm", "proc/driver/nvidia-caps/mig-minors"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    lines = [
        line
        for number, device in enumerate(SLICES)
        if device.instance and device.piece
        for line in (
            f"gpu5/gi{device.instance.id}/access {10 * number + 20}",
            f"gpu5/gi{device.instance.id}/ci{device.piece.id}/access {10 * number + 21}",
        )
    ]
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_text("\n".join(lines))
    return DriverFiles(host=tmp_path)


def config(*lists: str, **more: object) -> PluginConfig:
    return replace(PluginConfig(device_lists=tuple(map(DeviceListStrategy, lists))), **more)  # type: ignore[arg-type]


def test_envvar(files: DriverFiles) -> None:
    assert respond(SLICES, config("envvar"), files, request_id="r") == ContainerResponse(
        environment={"NVIDIA_VISIBLE_DEVICES": f"{A},{B}", **MARKS}
    )


def test_indexes(files: DriverFiles) -> None:
    by_index = config("envvar", device_id_strategy=DeviceIdStrategy.INDEX)
    devices = (*SLICES, PluginDevice(whole(7)))
    answer = respond(devices, by_index, files, request_id="r")
    assert answer.environment.items() >= {"NVIDIA_VISIBLE_DEVICES": "2:0,2:1,7", **MARKS}.items()


def test_volume_mounts(files: DriverFiles) -> None:
    answer = respond(SLICES, config("volume-mounts"), files, request_id="r")
    assert answer.environment == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices", **MARKS}
    assert [mount.container_path for mount in answer.mounts] == [
        f"/var/run/nvidia-container-devices/{u}" for u in (A, B)
    ]
    assert {mount.host_path for mount in answer.mounts} == {"/dev/null"}


def test_cdi_names(files: DriverFiles) -> None:
    kind = "k8s.device-plugin.nvidia.com/gpu"
    assert respond(SLICES, config("cdi-cri"), files, request_id="r") == ContainerResponse(
        cdi_devices=(f"{kind}={A}", f"{kind}={B}")
    )
    answer = respond(SLICES, config("cdi-annotations", cdi_annotation_prefix="x.y/"), files, request_id="r")
    assert answer.annotations == {"x.y/nvidia-device-plugin_r": f"{kind}={A},{kind}={B}"}
    assert not answer.environment


def test_device_specs_are_the_slices_own(files: DriverFiles) -> None:
    answer = respond(SLICES[:1], config("envvar", pass_device_specs=True), files, request_id="r")
    assert [node.container_path for node in answer.device_nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia5",
        "/dev/nvidia-caps/nvidia-cap20",
        "/dev/nvidia-caps/nvidia-cap21",
    ]
    both = respond(SLICES, config("envvar", pass_device_specs=True), files, request_id="r")
    assert len(both.device_nodes) == 2 + 1 + 4, "the GPU's node is given once"
    cdi = respond(SLICES, config("cdi-cri", pass_device_specs=True), files, request_id="r")
    assert not cdi.device_nodes, "the specification has them"


def test_features(files: DriverFiles) -> None:
    answer = respond(SLICES[:1], config("envvar", gds_enabled=True, mofed_enabled=True), files, request_id="r")
    assert answer.environment["NVIDIA_GDS"] == answer.environment["NVIDIA_MOFED"] == "enabled"
    assert "NVIDIA_GDRCOPY" not in answer.environment


def test_a_simulated_machine_comes_with_the_slice(tmp_path: Path) -> None:
    files = SimulatedDeviceFiles(tmp_path / "state")
    answer = respond(SLICES[:1], config("envvar"), files, request_id="r")
    assert answer.environment["NVIDIA_VISIBLE_DEVICES"] == A
    assert Mount(str(tmp_path / "state"), "/run/tranche/simulator/state", read_only=False) in answer.mounts
    assert not respond(SLICES[:1], config("cdi-cri"), files, request_id="r").mounts


def test_the_specification_has_every_device_that_exists(files: DriverFiles) -> None:
    state = node(GPU, whole(3), lost(cut(4, *ALL_1G)))
    data = spec_to_data(cdi_spec(state, files))
    assert data["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert {device["name"] for device in data["devices"]} == {GPU.uuid, A, B, whole(3).uuid}
    assert all(device["containerEdits"] for device in data["devices"]), "a device without edits is not valid"
    (first,) = [device for device in data["devices"] if device["name"] == A]
    nodes = [each["path"] for each in first["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/nvidia5", "/dev/nvidia-caps/nvidia-cap20", "/dev/nvidia-caps/nvidia-cap21"]
    assert f"{device_mark(A)}={A}" in first["containerEdits"]["env"]
