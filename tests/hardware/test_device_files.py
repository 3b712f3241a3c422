"""What a container is given, read from a host's files; and the CDI specification made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hardware.gpus import GPU, PIECE, SLICE
from tranche.core.allocation import FractionalShare, Grant, Slice, WholeGpu
from tranche.core.errors import VerificationFailed
from tranche.core.grid import Placement
from tranche.core.sharing import MEMORY_LIMIT, Sharing
from tranche.hardware.cdi import CdiDevice, CdiSpec, edits_of, spec_to_data, write_spec
from tranche.hardware.host_facts import sysfs_address
from tranche.hardware.nodes import (
    ContainerEdits,
    DeviceNode,
    DriverFiles,
    Mount,
    SimulatedDeviceFiles,
    driver_files,
    library_folders,
    merged,
    parse_mig_minors,
)

VERSION = "580.95.05"
MINORS = "config 1\nmonitor 2\ngpu3/gi1/access 30\ngpu3/gi1/ci0/access 31\ngpu3/gi2/access 39\ngpu30/gi1/access 300\n"


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with the driver's files."""
    touch(tmp_path, "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia3")
    touch(tmp_path, "proc/driver/nvidia-caps/mig-minors", "sys/bus/pci/devices/0000:10:1c.0/numa_node")
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_text(MINORS)
    (tmp_path / "sys/bus/pci/devices/0000:10:1c.0/numa_node").write_text("1\n")
    touch(tmp_path, f"usr/lib64/libcuda.so.{VERSION}", f"usr/lib64/libnvidia-ml.so.{VERSION}", "usr/lib64/libc.so.6")
    touch(tmp_path, f"usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}", "usr/bin/nvidia-smi", "usr/bin/true")
    touch(tmp_path, f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "lib/firmware/nvidia/1.2/gsp_ga10x.bin")
    (tmp_path / "lib64").symlink_to("usr/lib64")
    return tmp_path


def test_only_control_nodes_that_exist(host: Path) -> None:
    nodes = DriverFiles(host=host).control_nodes()
    assert [node.container_path for node in nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert nodes[0] == DeviceNode("/dev/nvidiactl", "/dev/nvidiactl", "rw")


def test_nodes_lie_under_the_device_root_on_the_host_only(host: Path) -> None:
    (node,) = DriverFiles(host=host, dev_root="/run/nvidia/driver").gpu_nodes(GPU)
    assert node == DeviceNode("/run/nvidia/driver/dev/nvidia3", "/dev/nvidia3")


def test_a_slice_has_its_gpus_node_and_its_own_capability_files(host: Path) -> None:
    nodes = DriverFiles(host=host).slice_nodes(GPU, SLICE, PIECE)
    wanted = ["/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]
    assert [node.host_path for node in nodes] == wanted


def test_cdi_needs_the_driver_and_its_hook_where_the_agent_sees_them(host: Path) -> None:
    def why(hook: str = "/usr/bin/nvidia-ctk", driver_root: str = "/") -> str:
        return DriverFiles(driver_root=driver_root, seen_at=str(host), hook_path=hook).why_no_cdi()

    assert "nvidia-ctk" in why()
    touch(host, "usr/bin/nvidia-ctk")
    assert not why()
    assert "nvidia-cdi-hook" in why("/usr/bin/nvidia-cdi-hook")
    assert "the path of nvidia-cdi-hook is not set" in why(driver_root="/run/nvidia/driver")
    assert not why("/usr/local/nvidia/toolkit/nvidia-cdi-hook", driver_root="/run/nvidia/driver")
    (host / f"usr/lib64/libcuda.so.{VERSION}").unlink()
    assert "the driver's libcuda.so is missing" in why()


def test_a_host_without_capability_files_leaves_the_gpus_node(tmp_path: Path) -> None:
    assert [node.host_path for node in DriverFiles(host=tmp_path).slice_nodes(GPU, SLICE, PIECE)] == ["/dev/nvidia3"]


@pytest.mark.parametrize(("text", "node"), [("0\n", 0), ("1\n", 1), ("-1\n", None), ("", None)])
def test_numa_node(host: Path, text: str, node: int | None) -> None:
    (host / "sys/bus/pci/devices/0000:10:1c.0/numa_node").write_text(text)
    assert DriverFiles(host=host).numa_node(GPU) == node


def test_names_of_the_kernel() -> None:
    assert sysfs_address("00000000:10:1C.0") == "0000:10:1c.0"
    assert parse_mig_minors("gpu0/gi1/access 3\n\nbroken\nbroken x\n") == {"gpu0/gi1/access": 3}


def test_the_drivers_files_are_those_of_its_version_each_once(host: Path) -> None:
    files = driver_files(host, VERSION)
    assert files == (
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/usr/bin/nvidia-smi",
        f"/usr/lib64/libcuda.so.{VERSION}",
        f"/usr/lib64/libnvidia-ml.so.{VERSION}",
        f"/usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}",
    )
    assert library_folders(files) == ("/usr/lib64", "/usr/lib64/vdpau")
    assert driver_files(host, "") == (), "without a version every library would match"


def test_cdi_adds_what_the_runtime_would_have_added(host: Path) -> None:
    edits = DriverFiles(host=host, seen_at=str(host), driver_root="/run/driver").by_cdi(VERSION)
    assert ("NVIDIA_VISIBLE_DEVICES", "void") in edits.environment
    path = f"/usr/lib64/libcuda.so.{VERSION}"
    assert Mount(f"/run/driver{path}", path) in edits.mounts
    assert [hook.arguments for hook in edits.hooks] == [
        ("nvidia-ctk", "hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"),
        ("nvidia-ctk", "hook", "update-ldcache", "--folder", "/usr/lib64"),
        ("nvidia-ctk", "hook", "update-ldcache", "--folder", "/usr/lib64/vdpau"),
    ]
    other = DriverFiles(host=host, seen_at=str(host), hook_path="/opt/nvidia-cdi-hook").by_cdi(VERSION)
    assert other.hooks[0].path == "/opt/nvidia-cdi-hook"
    assert other.hooks[0].arguments[:2] == ("nvidia-cdi-hook", "create-symlinks")


def test_a_share_gets_the_nodes_of_its_devices_alone(host: Path) -> None:
    files, marks = DriverFiles(host=host), (("TRANCHE_ALLOCATION", "5d8fb96b"),)

    def given(grant: Grant) -> ContainerEdits:
        return edits_of(grant, GPU, files, Path, marks, "5d8fb96b")

    place = Slice(GPU.uuid, SLICE.profile, SLICE.placement)
    nodes = ["/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]
    assert [each.host_path for each in given(place).device_nodes] == nodes
    assert (given(place).environment, given(place).mounts) == (marks, ())
    assert [each.host_path for each in given(WholeGpu(GPU.uuid)).device_nodes] == nodes[:1]
    assert merged([given(WholeGpu(GPU.uuid)), given(place)]) == given(place)
    part = given(FractionalShare(WholeGpu(GPU.uuid), (4 << 30) + 1, Sharing.MEMORY_LIMITS))
    assert (part.device_nodes, dict(part.environment)[MEMORY_LIMIT]) == (
        given(WholeGpu(GPU.uuid)).device_nodes,
        f"{(4 << 30) + 1}",
    )
    (hook,) = part.hooks
    assert (hook.name, hook.path, hook.arguments[0]) == ("createRuntime", "/bin/sh", "sh")
    assert hook.arguments[-4:] == ("5d8fb96b", GPU.uuid, "4096", "/usr/bin/nvidia-smi")
    with pytest.raises(VerificationFailed):
        given(place._replace(placement=Placement(1, 1)))


def test_a_hook_limits_memory_only_where_it_finds_what_it_runs(host: Path) -> None:
    def why(driver_root: str = "/") -> str:
        return DriverFiles(driver_root=driver_root, seen_at=str(host)).why_no_limit_hook()

    assert why() == "the host's /sys/fs/cgroup is not cgroup v2"
    touch(host, "sys/fs/cgroup/cgroup.controllers", "bin/sh", "usr/bin/flock")
    assert why() == ""
    assert why("/run/driver") == "the driver is in /run/driver, not in the host's /"
    for path in ("usr/bin/nvidia-smi", "usr/bin/flock", "bin/sh"):
        (host / path).unlink()
        assert why() == f"the host lacks /{path}"


def test_a_simulated_machine_is_given_by_mounts(tmp_path: Path) -> None:
    files = SimulatedDeviceFiles(tmp_path / "state")
    assert not files.control_nodes()
    assert not files.slice_nodes(GPU, SLICE, PIECE)
    state = Mount(str(tmp_path / "state"), "/run/tranche/simulator/state", read_only=False)
    assert state in files.beside_runtime().mounts
    assert state in files.by_cdi(VERSION).mounts
    assert all(Path(mount.host_path).exists() for mount in files.beside_runtime().mounts if mount != state)
    assert files.device_by_cdi("MIG-1").mounts == (Mount("/dev/null", "/var/run/nvidia-container-devices/MIG-1"),)
    assert files.numa_node(GPU) == GPU.numa_node


EDITS = ContainerEdits((DeviceNode("/r/dev/a", "/dev/a"),), (Mount("/x", "/y"),), (("A", "1"),))
SPEC = CdiSpec("example.com/gpu", (CdiDevice("one", EDITS), CdiDevice("two", ContainerEdits())), EDITS)


def test_a_specification_as_data() -> None:
    assert spec_to_data(SPEC)["devices"] == [
        {
            "name": "one",
            "containerEdits": {
                "env": ["A=1"],
                "deviceNodes": [{"path": "/dev/a", "hostPath": "/r/dev/a", "permissions": "rw"}],
                "mounts": [
                    {
                        "hostPath": "/x",
                        "containerPath": "/y",
                        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                    }
                ],
            },
        },
        {"name": "two", "containerEdits": {}},
    ]
    hook = DriverFiles().limit_hook("a", "GPU-a", 1 << 30)
    (data,) = spec_to_data(CdiSpec("a.b/c", (CdiDevice("a", ContainerEdits(hooks=(hook,))),), ContainerEdits()))[
        "devices"
    ]
    assert [{**each, "args": each["args"][-4:]} for each in data["containerEdits"]["hooks"]] == [
        {
            "hookName": "createRuntime",
            "path": "/bin/sh",
            "args": ["a", "GPU-a", "1024", "/usr/bin/nvidia-smi"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        }
    ]
    assert "containerEdits" not in spec_to_data(CdiSpec("a.b/c", (), ContainerEdits()))


def test_a_specification_is_written_only_when_it_changed(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    write_spec(SPEC, folder)
    path = folder / "example.com-gpu.json"
    assert json.loads(path.read_text()) == spec_to_data(SPEC)
    before = path.stat().st_ino
    write_spec(SPEC, folder)
    assert path.stat().st_ino == before
    write_spec(CdiSpec(SPEC.kind, SPEC.devices[:1], EDITS), folder)
    assert len(json.loads(path.read_text())["devices"]) == 1
    write_spec(CdiSpec(SPEC.kind, (), EDITS), folder)
    assert list(folder.iterdir()) == [], "a specification without devices is not valid"


def test_a_file_that_a_power_loss_has_damaged_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "example.com-gpu.json"
    for left in (b"", b"\x00\xff\xfe", b"[]"):
        path.write_bytes(left)
        write_spec(SPEC, tmp_path)
        assert json.loads(path.read_text()) == spec_to_data(SPEC)


def test_only_what_outlasts_power_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr("os.fsync", waited.append)
    write_spec(SPEC, tmp_path / "a", outlasts_power=False)
    assert not waited
    write_spec(SPEC, tmp_path / "b")
    assert len(waited) == 1
