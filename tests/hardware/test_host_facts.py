"""Whether a machine has an NVIDIA GPU, by its PCI bus alone: what is not known is not taken for absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tranche.hardware.host_facts import has_nvidia_gpu

GPU, SWITCH, OTHER = ("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x8086", "0x030000")


@pytest.mark.parametrize(
    ("devices", "expected"),
    [([], None), ([OTHER], False), ([OTHER, SWITCH], False), ([OTHER, GPU], True), ([("0x10de", "0x030000")], True)],
)
def test_only_a_bus_without_one_shows_that_there_is_none(
    tmp_path: Path, devices: list[tuple[str, str]], expected: bool | None
) -> None:
    folder = tmp_path / "bus/pci/devices"
    folder.mkdir(parents=True)
    for number, (vendor, kind) in enumerate(devices):
        device = folder / f"0000:0{number}:00.0"
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    assert has_nvidia_gpu(sys=tmp_path) is expected
    assert has_nvidia_gpu(sys=tmp_path / "nowhere") is None
