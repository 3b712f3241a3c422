"""The restart of the machine, on a host root of the test's own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tranche.core.errors import HardwareError
from tranche.kubernetes.mig_manager.machine_restart import restart_machine

BUSYBOX = shutil.which("busybox")

needs_a_host = pytest.mark.skipif(
    os.geteuid() != 0 or BUSYBOX is None, reason="needs root, to change into a host root, and a busybox to put there"
)


def host(folder: Path, reboot: str) -> Path:
    """A host root with a shell, and that script as its reboot."""
    assert BUSYBOX is not None
    (folder / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, folder / "bin" / "busybox")
    script = folder / "bin" / "reboot"
    script.write_text(f"#!/bin/busybox sh\n{reboot}\n")
    script.chmod(0o755)
    return folder


@needs_a_host
def test_it_is_the_hosts_own_reboot_that_is_run(tmp_path: Path) -> None:
    restart_machine(host(tmp_path, "/bin/busybox touch /asked"))
    assert (tmp_path / "asked").exists()


@needs_a_host
def test_what_the_host_says_against_it_is_told(tmp_path: Path) -> None:
    refusing = host(tmp_path, "echo no permission >&2; exit 1")
    with pytest.raises(HardwareError, match="cannot restart the machine: reboot failed: no permission"):
        restart_machine(refusing)


def test_a_host_root_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="cannot restart the machine"):
        restart_machine(tmp_path / "absent")
