"""The PCIe root of a GPU, as the kernel's tree of devices shows it."""

from __future__ import annotations

from pathlib import Path

from tranche.hardware.host_facts import read_pcie_roots


def test_the_root_is_the_first_part_of_the_place_in_the_kernels_tree(tmp_path: Path) -> None:
    device = tmp_path / "devices" / "pci0000:10" / "0000:10:1a.0" / "0000:17:00.0"
    device.mkdir(parents=True)
    listed = tmp_path / "bus" / "pci" / "devices"
    listed.mkdir(parents=True)
    (listed / "0000:17:00.0").symlink_to(device)
    assert read_pcie_roots({"GPU-1": "00000000:17:00.0", "GPU-2": "00000000:18:00.0"}, sys=tmp_path) == {
        "GPU-1": "pci0000:10"
    }
