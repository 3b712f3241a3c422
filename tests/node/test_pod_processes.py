"""Pods are known by the cgroups of their processes, however the cgroups are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tranche.core.allocation import Grant, Slice, WholeGpu
from tranche.core.grid import Placement
from tranche.core.keeper import PodKeeper
from tranche.core.profile import parse_profile
from tranche.hardware.process_stat import process_file
from tranche.node.processes.pod_processes import devices_of_pods, devices_told, pods_with_processes

UID, OTHER = "958d53a2-4189-4279-8fe3-8bd25234530a", "958d53a2-4189-4279-8fe3-8bd25234530b"
THIRD = "0d2c1f3e-4189-4279-8fe3-8bd25234530c"
SLICE = "kubepods-besteffort-pod958d53a2_4189_4279_8fe3_8bd25234530a.slice"


def process(proc: Path, pid: int, cgroup: str, state: str = "S", environment: bytes = b"") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(cgroup)
    (proc / str(pid) / "environ").write_bytes(environment)
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {state} 1" + " 0" * 48)


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods/pod{UID}\n",
        f"0::/../../burstable/pod{UID}/7abba731\n",
        f"9:name=systemd:/\n8:pids:/kubepods/besteffort/pod{UID}/7abba731\n",
        f"0::/kubepods.slice/kubepods-besteffort.slice/{SLICE}/cri-containerd-7abba731.scope\n",
        f"0::/kubepods.slice/kubepods-besteffort.slice/{SLICE}",
    ],
)
def test_a_process_below_the_pods_cgroup_is_the_pods(tmp_path: Path, cgroup: str) -> None:
    process(tmp_path, 7, cgroup)
    process(tmp_path, 8, "0::/system.slice/containerd.service\n")
    (tmp_path / "9").mkdir()  # it ended meanwhile
    (tmp_path / "self").mkdir()
    assert pods_with_processes([UID, OTHER], tmp_path) == {UID}
    assert pods_with_processes([OTHER], tmp_path) == frozenset()


def test_a_zombie_holds_nothing(tmp_path: Path) -> None:
    process(tmp_path, 7, f"0::/kubepods/pod{UID}\n", state="Z")
    assert pods_with_processes([UID], tmp_path) == frozenset()


def test_a_new_register_learns_from_their_processes_what_pods_have(tmp_path: Path) -> None:
    one = Slice("GPU-0", parse_profile("1g.5gb"), Placement(0, 1))
    devices: dict[str, Grant] = {"MIG-0": one, "GPU-1": WholeGpu("GPU-1")}
    visible = b"A=b\0NVIDIA_VISIBLE_DEVICES=MIG-0,GPU-1\0"
    process(tmp_path, 7, f"0::/kubepods/pod{UID}/a\n", environment=visible)
    process(tmp_path, 8, f"0::/kubepods/pod{UID}/a\n", environment=visible)
    process(tmp_path, 9, f"0::/kubepods/pod{OTHER}/b\n", environment=b"NVIDIA_VISIBLE_DEVICES=all\0")
    process(tmp_path, 10, "0::/user.slice\n", environment=visible)
    process(tmp_path, 11, f"0::/kubepods/pod{OTHER}/b\n", environment=b"NVIDIA_VISIBLE_DEVICES=MIG-0")
    by_cdi = b"NVIDIA_VISIBLE_DEVICES=void\0TRANCHE_DEVICE_GPU_1=GPU-1"
    process(tmp_path, 12, f"0::/kubepods/pod{THIRD}/b\n", environment=by_cdi)
    ids = iter("abc")

    def of_this_machine(pid: int) -> bool:
        return pid != 11

    found = devices_of_pods(devices, now=5.0, new_id=lambda: next(ids), of_this_machine=of_this_machine, proc=tmp_path)
    assert {grant for each in found for grant in each.grants} == set(devices.values())
    had = {(each.keeper, each.grants) for each in found}
    first, third = PodKeeper("", uid=UID), PodKeeper("", uid=THIRD)
    assert had == {(first, (one,)), (first, (devices["GPU-1"],)), (third, (devices["GPU-1"],))}


def test_what_the_processes_of_a_pod_name_is_known_only_when_all_can_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = {7: UID, 8: UID, 9: OTHER, 10: OTHER, 11: THIRD}
    told = {7: b"TRANCHE_DEVICE_MIG_0=MIG-0\0A=b\0", 8: b"NVIDIA_VISIBLE_DEVICES=MIG-1,GPU-1\0"}
    for pid, uid in pods.items():
        process(tmp_path, pid, f"0::/kubepods/pod{uid}/a\n", environment=told.get(pid, b"A=b\0"))

    def refuse(pid: int, name: str, proc: Path) -> bytes:
        if pid == 10 and name == "environ":
            raise PermissionError
        return process_file(pid, name, proc)

    monkeypatch.setattr("tranche.hardware.process_stat.process_file", refuse)
    found = devices_told([UID, OTHER], tmp_path)
    assert found.keys() == {UID, OTHER}
    assert {"MIG-0", "MIG-1", "GPU-1"}.issubset(found[UID] or ())
    assert found[OTHER] is None
