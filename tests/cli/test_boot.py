"""`tranche boot` on simulated machines: what is cut, what is refused, what is left behind; and the unit's two files."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine, run_without_driver, wait_until

ARTICLE = "MIG_PARTITION=19,19,19,19,19,19,19\n"
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


def asking(machine: TestMachine, text: str = ARTICLE) -> tuple[str, ...]:
    """The command with a file of that text."""
    file = machine.folder / "mig"
    file.write_text(text)
    return ("boot", "--file", str(file))


def listen(server: socket.socket, said: list[str]) -> None:
    """Note what a service says until an empty message comes."""
    while message := server.recv(4096):
        said.append(message.decode())


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for that signal."""
    (mask,) = re.findall(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) & 1 << number - 1)


def slices(machine: TestMachine) -> list[int]:
    return [gpu.compute_instances for gpu in machine.machine.gpus()]


def ended(machine: TestMachine) -> dict[str, Any]:
    """What the last cut at boot left behind."""
    found = [each for each in machine.json("events")["events"] if each["type"] == "BootEnded"]
    data: dict[str, Any] = found[-1]["data"] | {"message": found[-1]["message"]}
    return data


def test_the_articles_file_gives_fifty_six_slices_and_the_second_time_nothing_changes(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine(machine_type="p4d.24xlarge")
    done = machine.tranche(*asking(machine))
    assert slices(machine) == [7] * 8
    assert "the GPUs have 56 slices for 19,19,19,19,19,19,19" in done.stderr
    before = machine.changes()
    done = machine.tranche(*asking(machine))
    assert "nothing to do" in done.stderr
    assert machine.changes() == before
    assert ended(machine)["reason"] == ""


@pytest.mark.parametrize("value", ["7*1g.5gb", "all-1g.5gb", "'7*19'"])
def test_names_and_layouts(two_a100: TestMachine, value: str) -> None:
    two_a100.tranche(*asking(two_a100, f"MIG_PARTITION={value}\n"))
    assert slices(two_a100) == [7, 7]


def test_a_layout_of_a_file(two_a100: TestMachine) -> None:
    layouts = two_a100.folder / "layouts.yaml"
    layouts.write_text(
        "version: v1\nmig-configs:\n  one:\n"
        "    - {devices: [0], mig-enabled: false}\n"
        "    - {devices: [1], mig-enabled: true, mig-devices: {3g.20gb: 2}}\n"
    )
    two_a100.tranche(*asking(two_a100, f"MIG_PARTITION=one\nMIG_PARTED_CONFIG_FILE={layouts}\n"))
    assert slices(two_a100) == [0, 2]


def test_a_slice_in_use_is_never_destroyed(two_a100: TestMachine) -> None:
    two_a100.hold("--mig-profile", "3g.20gb")
    before = two_a100.changes()
    done = two_a100.tranche(*asking(two_a100), code=80)
    assert "in use" in done.stderr
    assert two_a100.changes() == before
    assert ended(two_a100)["reason"] == "GpuBusy"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("MIG_PARTITION=99,99\n", 30, "has no profile with the number 99"),
        ("MIG_PARTITION=8*19\n", 12, "cannot have 8x 1g.5gb"),
        ("MIG_PARTITION=all-1g.10mb\n", 11, "does not name a layout"),
        ("MIG_PARTITION=\n", 18, "is empty"),
        ("MIG_PARTITION=one\nMIG_PARTED_CONFIG_FILE=/nowhere\n", 10, "cannot read /nowhere"),
    ],
)
def test_what_cannot_be_is_said_before_anything_changes(
    two_a100: TestMachine, text: str, code: int, words: str
) -> None:
    before = two_a100.changes()
    done = two_a100.tranche(*asking(two_a100, text), code=code)
    assert words in done.stderr
    assert two_a100.changes() == before
    assert words in ended(two_a100)["message"]


def test_a_machine_without_mig(make_machine: MakeMachine) -> None:
    machine = make_machine("T4")
    assert "this machine has Tesla T4" in machine.tranche(*asking(machine), code=24).stderr
    assert ended(machine)["reason"] == "MigNotSupported"


def test_one_lost_gpu_is_named_and_the_others_are_cut(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB", "A100-40GB", "A100-40GB")
    machine.machine.inject_lost(1)
    assert "GPU 1" in machine.tranche(*asking(machine), code=21).stderr
    assert [slices(machine)[index] for index in (0, 2)] == [7, 7]
    assert ended(machine)["reason"] == "HardwareError"


def test_a_driver_that_is_late_is_waited_for(two_a100: TestMachine) -> None:
    away = two_a100.folder / "away"
    two_a100.machine.state.rename(away)
    command = two_a100.start(*asking(two_a100))
    assert command.stderr is not None
    assert command.stderr.readline().startswith("waiting for the NVIDIA driver")
    away.rename(two_a100.machine.state)
    assert command.wait(60) == 0, command.stderr.read()
    assert slices(two_a100) == [7, 7]


def test_a_driver_that_does_not_come_is_an_error_in_time(two_a100: TestMachine) -> None:
    two_a100.machine.state.rename(two_a100.folder / "away")
    done = two_a100.tranche(*asking(two_a100), "--timeout", "0s", code=20)
    assert "was not ready within 0 s" in done.stderr


def test_a_machine_without_an_nvidia_gpu_has_nothing_to_cut(tmp_path: Path) -> None:
    file = tmp_path / "mig"
    file.write_text(ARTICLE)
    there = {each.read_text().strip() for each in Path("/sys/bus/pci/devices").glob("*/vendor")}
    if not there or "0x10de" in there:
        pytest.skip("needs a machine whose PCI bus has no device of NVIDIA")
    done = run_without_driver("--state-dir", str(tmp_path), "boot", "--file", str(file))
    assert done.stderr.splitlines()[-1] == "this machine has no NVIDIA GPU: there is nothing to partition"


def test_told_to_end_it_ends_and_the_next_command_undoes_the_rest(two_a100: TestMachine) -> None:
    two_a100.machine.inject_latency(CREATE, 0.2)
    command = two_a100.start(*asking(two_a100))
    wait_until(lambda: any(gpu.gpu_instances for gpu in two_a100.machine.gpus()), command)
    command.send_signal(signal.SIGTERM)
    assert command.wait(60) == 70
    two_a100.machine.clear_injections()
    two_a100.tranche("gpus")
    assert slices(two_a100) == [0, 0]
    assert ended(two_a100)["reason"] == "WaitTimeout"


def test_a_driver_that_hangs_does_not_keep_it_from_ending_and_saying_why(two_a100: TestMachine) -> None:
    two_a100.machine.inject_latency("nvmlDeviceGetCount_v2", 1000)
    command = two_a100.start(*asking(two_a100))
    wait_until(lambda: catches(command.pid, signal.SIGTERM), command)
    command.send_signal(signal.SIGTERM)
    assert command.wait(60) == 70
    two_a100.machine.clear_injections()
    assert "it received SIGTERM" in ended(two_a100)["message"]


def test_the_service_manager_is_told_what_goes_on_and_how_it_ended(two_a100: TestMachine) -> None:
    address = two_a100.folder / "notify"
    for text, end in ((ARTICLE, "14 slices"), ("MIG_PARTITION=77\n", "failed: GPU 0")):
        said: list[str] = []
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(str(address))
            listener = threading.Thread(target=listen, args=(server, said))
            listener.start()
            two_a100.tranche(*asking(two_a100, text), code=None, NOTIFY_SOCKET=str(address))
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
                client.sendto(b"", str(address))
            listener.join(60)
        address.unlink()
        assert all(each.startswith("STATUS=") and "\n" not in each for each in said)
        assert end in said[-1]


def test_a_service_manager_that_does_not_listen_holds_nothing_up(two_a100: TestMachine) -> None:
    address = two_a100.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(address))
        two_a100.tranche(*asking(two_a100), NOTIFY_SOCKET=str(address))
    assert slices(two_a100) == [7, 7]


def test_where_nothing_can_be_written_down_it_is_said(two_a100: TestMachine) -> None:
    (two_a100.folder / "state").write_text("no folder")
    done = two_a100.tranche(*asking(two_a100, "MIG_PARTITION=x,y\n"), code=18)
    assert "cannot record the partitioning result" in done.stderr


def test_the_unit_is_written_once_and_removed_without_a_trace(two_a100: TestMachine, tmp_path: Path) -> None:
    root = tmp_path / "image"
    root.mkdir()
    folder = root / "etc/systemd/system"
    folder.mkdir(parents=True)
    install = ("boot", "--timeout", "30s", "install", "--root", str(root), "--program", "/opt/tranche/bin/tranche")
    assert "nothing is partitioned until" in two_a100.tranche(*install).stderr
    unit = (folder / "tranche-boot.service").read_text()
    assert "\nExecStart=/opt/tranche/bin/tranche boot --timeout 30\n" in unit
    assert "\nTimeoutStartSec=210\n" in unit
    assert "@" not in unit
    link = folder / "multi-user.target.wants/tranche-boot.service"
    assert link.resolve() == folder / "tranche-boot.service"
    assert "up to date" in two_a100.tranche(*install).stderr

    (root / "etc/default").mkdir()
    (root / "etc/default/mig").write_text(ARTICLE)
    shown = two_a100.json("boot", "status", "--root", str(root))
    assert (shown["installed"], shown["enabled"], shown["asked"]) == (True, True, "19,19,19,19,19,19,19")

    (folder / "tranche-boot.service.d").mkdir()
    own = folder / "tranche-boot.service.d/mine.conf"
    own.write_text("[Service]\nNice=5\n")
    assert "is removed" in two_a100.tranche("boot", "remove", "--root", str(root)).stderr
    assert "is not installed" in two_a100.tranche("boot", "remove", "--root", str(root)).stderr
    assert [path for path in folder.rglob("*") if path.is_file()] == [own]
    assert not two_a100.json("boot", "status", "--root", str(root))["installed"]


def test_another_tool_that_cuts_at_boot_is_named(two_a100: TestMachine, tmp_path: Path) -> None:
    other = tmp_path / "usr/lib/systemd/system/nvidia-mig-manager.service"
    other.parent.mkdir(parents=True)
    other.touch()
    done = two_a100.tranche("boot", "install", "--root", str(tmp_path), "--program", "/usr/bin/tranche")
    assert "nvidia-mig-manager.service also partitions GPUs at boot" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--program", "tranche"), ("--program", "/usr/bin/tranche\nExecStart=/bin/sh")],
)
def test_a_program_that_is_no_path_is_refused(
    two_a100: TestMachine, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert (
        "is not an absolute path"
        in two_a100.tranche("boot", "install", "--root", str(tmp_path), *arguments, code=2).stderr
    )
    assert not list(tmp_path.rglob("tranche-boot.service"))


def test_an_image_that_is_not_mounted_is_not_made(two_a100: TestMachine, tmp_path: Path) -> None:
    image = tmp_path / "image"
    two_a100.tranche("boot", "install", "--root", str(image), "--program", "/usr/bin/tranche", code=2)
    assert not image.exists()


def test_the_machine_that_is_meant_is_the_units_as_well(two_a100: TestMachine, tmp_path: Path) -> None:
    options = ("--simulate", "p4d.24xlarge", "--state-dir", "/srv/tranche")
    two_a100.tranche(*options, "boot", "install", "--root", str(tmp_path), "--program", "/usr/bin/tranche")
    unit = (tmp_path / "etc/systemd/system/tranche-boot.service").read_text()
    assert f"\nExecStart=/usr/bin/tranche {' '.join(options)} boot\n" in unit


def test_a_unit_that_somebody_masked_stays_masked(two_a100: TestMachine, tmp_path: Path) -> None:
    mask = tmp_path / "etc/systemd/system/tranche-boot.service"
    mask.parent.mkdir(parents=True)
    mask.symlink_to("/dev/null")
    done = two_a100.tranche("boot", "install", "--root", str(tmp_path), "--program", "/usr/bin/tranche", code=2)
    assert "is a link to /dev/null" in done.stderr
    assert str(mask.readlink()) == "/dev/null"


@pytest.mark.parametrize("command", ["install", "remove", "status"])
def test_an_images_link_does_not_lead_to_the_machines_own_units(
    two_a100: TestMachine, tmp_path: Path, command: str
) -> None:
    image, outside = tmp_path / "image", tmp_path / "outside"
    (image / "etc/systemd").mkdir(parents=True)
    (outside / "multi-user.target.wants").mkdir(parents=True)
    (image / "etc/systemd/system").symlink_to(outside)
    unit = outside / "tranche-boot.service"
    unit.write_text("the machine's own")
    program = ("--program", "/usr/bin/tranche") if command == "install" else ()
    done = two_a100.tranche("boot", command, "--root", str(image), *program, code=2)
    assert f"points outside {image}" in done.stderr
    assert unit.read_text() == "the machine's own"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_who_may_write_what_runs_at_boot_is_said(two_a100: TestMachine, tmp_path: Path) -> None:
    """Below a root of its own: the way to pytest's folder may be open to others."""
    program = tmp_path / "home/user/.local/bin/tranche"
    program.parent.mkdir(parents=True)
    said = [two_a100.tranche("boot", "install", "--root", str(tmp_path), "--program", "/nowhere/tranche").stderr]
    program.touch()
    os.chown(program.parent, 65534, 65534)
    install = ("boot", "install", "--root", str(tmp_path), "--program", "/home/user/.local/bin/tranche")
    said.append(two_a100.tranche(*install).stderr)
    os.chown(program.parent, 0, 0)
    said.append(two_a100.tranche(*install).stderr)
    assert "/nowhere/tranche does not exist" in said[0]
    assert f"users other than root can change {program.parent}" in said[1]
    assert "warning" not in said[2]


def test_status_shows_the_unit_also_where_the_ledger_is_damaged(two_a100: TestMachine) -> None:
    two_a100.tranche(*asking(two_a100))
    for log in two_a100.state_dir.glob("ledger.db-*"):
        log.unlink()
    two_a100.ledger.write_bytes(b"no database" * 1000)
    done = two_a100.tranche("boot", "status")
    assert "the partitioning result is unknown" in done.stderr
    assert done.stdout.startswith("unit ")


def test_status_says_how_the_cut_ended(two_a100: TestMachine) -> None:
    command = asking(two_a100)
    assert two_a100.json(*command, "status")["ended"] is None
    two_a100.tranche(*command)
    shown = two_a100.json(*command, "status")
    assert (shown["reason"], shown["asked"]) == ("", "19,19,19,19,19,19,19")
    assert "at boot: the GPUs are partitioned as" in two_a100.tranche(*command, "status").stdout
    assert shown["file"].startswith(os.sep)
