"""The machine around the GPUs, as a bundle says it: only what is named."""

from __future__ import annotations

import json
from pathlib import Path

from tranche.node.health.machine_facts import machine_facts, xids_in

SECRET = "hunter2-planted"


def test_of_the_kernels_command_line_only_what_matters_to_gpus(tmp_path: Path) -> None:
    files = {
        "proc/cmdline": f"BOOT_IMAGE=/x root=/dev/sda1 password={SECRET} iommu=pt nvidia.NVreg_EnableGpuFirmware=0 pci=noaer",
        "proc/modules": "nvidia 100 1 nvidia_uvm, Live 0x0\nnvidia_uvm 10 0 - Live 0x0\next4 1 0 - Live 0x0\n",
        "proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
        "proc/17/comm": "nv-fabricmanage\n",
        "etc/os-release": f'ID="amzn"\nVERSION_ID="2023"\nHOME_URL="{SECRET}"\n',
        "sys/fs/cgroup/cgroup.controllers": "cpu",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = machine_facts(root=tmp_path)
    assert SECRET not in json.dumps(facts)
    assert facts["kernelParameters"] == ["iommu=pt", "nvidia.NVreg_EnableGpuFirmware=0", "pci=noaer"]
    assert facts["driverModules"] == ["nvidia", "nvidia_uvm"]
    assert facts["kernelModuleVersion"] == "NVIDIA UNIX Open Kernel Module 580.95.05"
    assert (facts["fabricManager"], facts["persistenced"], facts["cgroup"]) == (True, False, 2)
    assert (facts["distribution"], facts["memoryBytes"]) == ({"ID": "amzn", "VERSION_ID": "2023"}, 1024000)


def test_a_machine_that_says_nothing_has_facts_all_the_same(tmp_path: Path) -> None:
    facts = machine_facts(root=tmp_path)
    assert (facts["distribution"], facts["memoryBytes"], facts["kernelModuleVersion"]) == ({}, None, None)


def test_xids_without_the_process_that_they_name() -> None:
    lines = [
        f"2026-11-21T10:00:00,1+00:00 NVRM: Xid (PCI:0000:10:1c): 79, pid='<unknown>', name={SECRET}, GPU is off the bus",
        "[  12.3] NVRM: Xid (PCI:0000:10:1d): 31, pid=12, MMU Fault",
        "usb 1-1: new device",
    ]
    assert list(xids_in(lines)) == [
        {"time": "2026-11-21T10:00:00,1+00:00", "pciBusId": "0000:10:1c", "xid": 79},
        {"time": None, "pciBusId": "0000:10:1d", "xid": 31},
    ]
