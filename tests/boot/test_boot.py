"""The unit boots in a systemd container: slices before the kubelet; and where they cannot be, a boot that ends and says why."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.boot.conftest import ARTICLE, MakeBootable
from tests.boot.debian_root import debian_root, why_no_container
from tests.boot.systemd_container import LIST_FOR_KUBELET, Booted
from tests.boot.test_earlier_boot import BEFORE, hold
from tests.machines import machine_in
from tests.node.machines import Node
from tranche.boot.unit import NodeInstallation

pytestmark = pytest.mark.systemd

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
WHEN_WAITED_FOR = "until journalctl -b -u tranche-boot | grep -q waiting; do sleep 0.1; done; mv /sim/away /sim/state"
"""The driver comes only once the boot has said that it waits: until then a slow machine may take as long as it likes."""


def assert_failed_and_said(booted: Booted, words: str) -> None:
    """The unit failed, the kubelet started after it, and the reason is where people look."""
    assert booted.properties["ActiveState"] == "failed"
    assert "tranche-boot.service" in booted.failed
    assert booted.order[-2:] in (["kubelet", "nodeadm-run"], ["nodeadm-run", "kubelet"])
    assert words in booted.properties["StatusText"]
    assert words in booted.status
    assert words in booted.journal


def test_fifty_six_slices_before_the_kubelet_at_every_boot_whoever_had_them(bootable: MakeBootable) -> None:
    made = bootable(machine_type="p4d.24xlarge")
    for _ in range(2):
        booted = made.boot()
        assert booted.slices_for_kubelet == 56
        assert booted.properties["ActiveState"] == "active"
        assert "the GPUs have 56 slices" in booted.properties["StatusText"]
        assert booted.order[:2] == ["nvidia-persistenced", "nvidia-fabricmanager"]
        assert not booted.failed
        machine = made.machine.machine
        assert hold(Node(machine, machine.directory), BEFORE) == 56
        machine.reboot()


def test_at_the_first_boot_the_kubelet_waits_for_what_user_data_starts(bootable: MakeBootable) -> None:
    made = bootable("A100-40GB", "A100-40GB")
    (made.system / "multi-user.target.wants/tranche-boot.service").unlink()
    made.stand_in("cloud-final", command="systemctl start --no-block tranche-boot.service")
    made.stand_in("nodeadm-run", order="After=cloud-final.service")
    made.stand_in("kubelet", order="After=nodeadm-run.service", command=LIST_FOR_KUBELET)
    booted = made.boot()
    assert booted.order[-2:] == ["nodeadm-run", "kubelet"]
    assert booted.slices_for_kubelet == 14


def test_what_a_nodes_agent_installs_boots_and_what_it_removes_does_not(bootable: MakeBootable) -> None:
    made = bootable("A100-40GB", partition=None)
    by_agent = NodeInstallation(made.root, "/opt/tranche/tranche", "7*1g.5gb", 20.0)
    by_agent.install()
    booted = made.boot()
    assert booted.slices_for_kubelet == 7
    assert "the GPUs have 7 slices for 7*1g.5gb" in booted.properties["StatusText"]
    made.machine.machine.reboot()
    by_agent.remove()
    booted = made.boot()
    assert booted.properties["LoadState"] == "not-found"
    assert booted.slices_for_kubelet == 0


def test_without_a_file_nothing_is_cut_and_nothing_fails(bootable: MakeBootable) -> None:
    booted = bootable("A100-40GB", partition=None).boot()
    assert (booted.properties["ActiveState"], booted.properties["ConditionResult"]) == ("inactive", "no")
    assert booted.slices_for_kubelet == 0
    assert not booted.failed


@pytest.mark.parametrize(
    ("board", "partition", "words"),
    [
        ("A100-40GB", "MIG_PARTITION=99,99\n", "GPU 0 (NVIDIA A100-SXM4-40GB) has no profile with the number 99"),
        ("T4", ARTICLE, "needs GPUs that can be partitioned, but this machine has Tesla T4"),
    ],
)
def test_what_cannot_be_cut_is_said_and_the_machine_boots(
    bootable: MakeBootable, board: str, partition: str, words: str
) -> None:
    booted = bootable(board, partition=partition).boot()
    assert_failed_and_said(booted, words)
    assert booted.slices_for_kubelet == 0
    assert "GPU 0" in booted.seen_by_kubelet


def test_one_lost_gpu_is_named_and_the_others_are_cut(bootable: MakeBootable) -> None:
    made = bootable(*["A100-40GB"] * 3)
    made.machine.machine.inject_lost(1)
    booted = made.boot()
    assert_failed_and_said(booted, "GPU 1")
    slices = [gpu.compute_instances for gpu in made.machine.machine.gpus()]
    assert [slices[0], slices[2]] == [7, 7]


def test_a_driver_that_is_late_is_waited_for(bootable: MakeBootable) -> None:
    made = bootable("A100-40GB", "A100-40GB")
    made.machine.machine.state.rename(made.machine.machine.directory / "away")
    made.stand_in("late-driver", command=WHEN_WAITED_FOR)
    booted = made.boot()
    assert booted.slices_for_kubelet == 14
    assert "waiting for the NVIDIA driver" in booted.journal
    assert booted.properties["ActiveState"] == "active"


def test_a_driver_that_does_not_come_ends_the_wait(bootable: MakeBootable) -> None:
    made = bootable("A100-40GB", timeout="1s")
    made.machine.machine.state.rename(made.machine.machine.directory / "away")
    assert_failed_and_said(made.boot(), "the NVIDIA driver was not ready within 1 s")


def test_on_a_machine_that_runs_the_unit_comes_and_goes(bootable: MakeBootable) -> None:
    made = bootable("A100-40GB")
    (made.system / "tranche-boot.service").unlink()
    (made.system / "multi-user.target.wants/tranche-boot.service").unlink()
    tranche, show = "/opt/tranche/tranche boot", "systemctl show --property LoadState,ActiveState tranche-boot"
    made.stand_in(
        "somebody",
        order="After=kubelet.service",
        command=f"{tranche} install && systemctl start tranche-boot && {show} > /out/installed; "
        f"{tranche} status > /out/said; {tranche} remove; {show} > /out/removed; ls -A /etc/systemd/system > /out/left",
    )
    booted = made.boot()
    out = made.folder / "out"
    assert (out / "installed").read_text().split() == ["LoadState=loaded", "ActiveState=active"]
    assert "as 19,19,19,19,19,19,19 specifies" in (out / "said").read_text()
    assert (out / "removed").read_text().split() == ["LoadState=not-found", "ActiveState=inactive"]
    assert "tranche-boot.service" not in (out / "left").read_text().split()
    assert (booted.slices_for_kubelet, booted.failed) == (0, "")
    assert [gpu.compute_instances for gpu in made.machine.machine.gpus()] == [7]


def copy_units(root: Path) -> Path:
    """Debian's own units in the root of an image; the folder for further ones."""
    shutil.copytree(debian_root() / "usr/lib/systemd/system", root / "usr/lib/systemd/system", symlinks=True)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    return wants


def add_unit(wants: Path, name: str, order: str) -> None:
    (wants.parent / name).write_text(f"[Unit]\n{order}\n[Service]\nType=oneshot\nExecStart=/bin/true\n")
    (wants / name).symlink_to(f"../{name}")


@pytest.mark.parametrize("by_files", [False, True])
def test_a_unit_that_would_close_a_circle_is_not_left_there(tmp_path: Path, by_files: bool) -> None:
    if reason := why_no_container():
        pytest.skip(reason)
    root = tmp_path / "image"
    wants = copy_units(root)
    install = ("boot", "install", "--root", str(root), "--program", "/bin/true")
    add_unit(wants, "nodeadm-run.service", "After=cloud-final.service")
    add_unit(wants, "nvidia-kmod-load.service", "Before=nvidia-persistenced.service")
    add_unit(wants, "nvidia-persistenced.service", "")
    path = "/nowhere" if by_files else os.environ["PATH"]
    with machine_in(tmp_path, "A100-40GB") as machine:
        assert "is written and enabled" in machine.tranche(*install, PATH=path).stderr
        machine.tranche("boot", "remove", "--root", str(root))
        (wants / "nvidia-kmod-load.service").unlink()
        add_unit(wants, "nvidia-kmod-load.service", "Before=nvidia-persistenced.service\nAfter=nodeadm-run.service")
        refused = machine.tranche(*install, code=2, PATH=path).stderr
    assert "would create an ordering cycle" in refused
    assert "nodeadm-run.service" in refused
    assert not list(root.rglob("tranche-boot.service"))


def test_a_driver_that_hangs_is_ended_by_systemd_and_nobody_waits_for_ever(bootable: MakeBootable) -> None:
    made = bootable("A100-40GB")
    made.machine.machine.inject_latency(CREATE, 4.0)
    made.drop_in("impatient", "[Service]\nTimeoutStartSec=8\n")
    booted = made.boot()
    assert_failed_and_said(booted, "it received SIGTERM")
    assert booted.properties["Result"] == "timeout"
