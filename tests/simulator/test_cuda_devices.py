"""Which devices a CUDA program has, what they are called and how large they are, by the rules of CUDA_VISIBLE_DEVICES and MIG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.simulator.cuda_programs import MIB, cuda
from tests.simulator.machines import create, enable_mig, gpu, make_machine, mig_devices, span, talking_to
from tranche_simulator import SimulatedMachine

NO_DEVICE = 100
INVALID_DEVICE = 101

DEVICES = """
devices = []
result = code(cu.cuInit(0))
for ordinal in range(check(cu.cuDeviceGetCount()) if result == 0 else 0):
    device = check(cu.cuDeviceGet(ordinal))
    name = check(cu.cuDeviceGetName(100, device)).split(b"\\0")[0].decode()
    devices.append([name, bytes(check(cu.cuDeviceGetUuid(device)).bytes).hex()])
tell([result, devices])
"""


def hexadecimal(uuid: str) -> str:
    """The digits of "GPU-..." or "MIG-..."."""
    return uuid[4:].replace("-", "")


def shown(machine: SimulatedMachine, visible: str | None, **variables: str) -> list[str]:
    """UUIDs of the devices of a program with that CUDA_VISIBLE_DEVICES, as digits; what cuInit says of none is checked."""
    named = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    result, devices = cuda(machine, DEVICES, **named, **variables)
    assert result == (0 if devices else NO_DEVICE)
    return [uuid for _, uuid in devices]


@pytest.fixture
def three(tmp_path: Path) -> SimulatedMachine:
    return make_machine(tmp_path, "A100-40GB", "A100-40GB", "A100-40GB")


@pytest.fixture
def cut(three: SimulatedMachine) -> Iterator[tuple[SimulatedMachine, list[str]]]:
    """MIG on for all three; a 3g and a 1g on the second, nothing on the others; and the two UUIDs."""
    with talking_to(three):
        enable_mig(three)
        span(create(gpu(1), 9))
        span(create(gpu(1), 19))
        yield three, [str(nvml.nvmlDeviceGetUUID(device)) for device in mig_devices(gpu(1))]


def test_indexes_and_uuid_prefixes_name_gpus_and_renumber_them(three: SimulatedMachine) -> None:
    uuids = [each.uuid for each in three.gpus()]
    digits = [hexadecimal(uuid) for uuid in uuids]
    assert shown(three, None) == digits
    assert shown(three, "2,0") == [digits[2], digits[0]]
    assert shown(three, uuids[1]) == [digits[1]]
    assert shown(three, f"{uuids[1][:12]},0") == [digits[1], digits[0]]
    assert shown(three, uuids[1].upper().replace("GPU", "gpu")) == [digits[1]]


def test_what_stands_behind_an_entry_that_names_nothing_is_hidden(three: SimulatedMachine) -> None:
    digits = [hexadecimal(each.uuid) for each in three.gpus()]
    assert shown(three, "1,7,2") == [digits[1]]
    assert shown(three, "1,-1,2") == [digits[1]]
    for nothing in ("", "NoDevFiles", "-1", "GPU-", "GPU-00000000"):
        assert shown(three, nothing) == [], nothing
    result, devices = cuda(three, DEVICES, CUDA_VISIBLE_DEVICES="0,0")
    assert (result, devices) == (INVALID_DEVICE, [])


def test_a_container_numbers_what_it_was_given(three: SimulatedMachine) -> None:
    uuids = [each.uuid for each in three.gpus()]
    given = {"NVIDIA_VISIBLE_DEVICES": f"{uuids[1]},{uuids[2]}"}
    assert shown(three, None, **given) == [hexadecimal(uuids[1]), hexadecimal(uuids[2])]
    assert shown(three, "1", **given) == [hexadecimal(uuids[2])]
    assert shown(three, uuids[0], **given) == []
    assert shown(three, None, NVIDIA_VISIBLE_DEVICES="void") == []


def test_the_fastest_gpu_is_the_first_unless_the_bus_orders_them(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "T4", "A100-40GB")
    by_bus = [hexadecimal(each.uuid) for each in machine.gpus()]
    assert shown(machine, None) == by_bus[::-1]
    assert shown(machine, None, CUDA_DEVICE_ORDER="PCI_BUS_ID") == by_bus
    assert shown(machine, "0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == by_bus[:1]


def test_a_lost_gpu_is_not_there(three: SimulatedMachine) -> None:
    three.inject_lost(0)
    assert shown(three, None) == [hexadecimal(each.uuid) for each in three.gpus()[1:]]


def test_a_process_has_one_mig_device(cut: tuple[SimulatedMachine, list[str]]) -> None:
    machine, (large, small) = cut
    assert shown(machine, small) == [hexadecimal(small)]
    assert shown(machine, f"{large},{small}") == [hexadecimal(large)]
    assert shown(machine, small[:14]) == [hexadecimal(small)]
    assert shown(machine, None) == [hexadecimal(large)], "the first compute instance of the machine"
    assert shown(machine, "1") == [hexadecimal(large)], "a GPU in MIG mode stands for its first compute instance"
    assert shown(machine, "0") == [], "in MIG mode, without an instance"
    assert shown(machine, "MIG-00000000-0000-5000-8000-000000000000") == []
    old = f"MIG-{machine.gpus()[1].uuid}/{nvml.nvmlDeviceGetGpuInstanceId(mig_devices(gpu(1))[1])}/0"
    assert shown(machine, old) == [hexadecimal(small)]


def test_a_slice_is_a_device_of_its_own_size(cut: tuple[SimulatedMachine, list[str]]) -> None:
    machine, (large, small) = cut
    code = """
check(cu.cuInit(0))
device = check(cu.cuDeviceGet(0))
name = check(cu.cuDeviceGetName(100, device)).split(b"\\0")[0].decode()
attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
tell([name, check(cu.cuDeviceTotalMem(device)), check(cu.cuDeviceGetAttribute(attribute, device))])
"""
    assert cuda(machine, code, CUDA_VISIBLE_DEVICES=large) == ["NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20096 * MIB, 42]
    assert cuda(machine, code, CUDA_VISIBLE_DEVICES=small) == ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864 * MIB, 14]


def test_what_a_device_says_of_itself(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "T4")
    code = """
A = cu.CUdevice_attribute
check(cu.cuInit(0))
names = ("MULTIPROCESSOR_COUNT", "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "PCI_BUS_ID", "MPS_ENABLED")
values = [check(cu.cuDeviceGetAttribute(getattr(A, "CU_DEVICE_ATTRIBUTE_" + name), 0)) for name in names]
bus = check(cu.cuDeviceGetPCIBusId(20, 0)).split(b"\\0")[0]
tell([values, bus.decode(), check(cu.cuDeviceGetByPCIBusId(bus)).__int__(), check(cu.cuDriverGetVersion()),
      code(cu.cuDeviceGet(1)), code(cu.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 5))])
"""
    assert cuda(machine, code) == [[40, 7, 5, 16, 0], "0000:10:00.0", 0, 13000, 101, 101]


def test_without_a_driver_there_is_no_device(three: SimulatedMachine) -> None:
    assert shown(three, None, TRANCHE_SIM_STATE=str(three.directory / "none")) == []


def test_calls_before_the_first_say_so(three: SimulatedMachine) -> None:
    answers: Any = cuda(three, "tell([code(cu.cuDeviceGetCount()), code(cu.cuMemGetInfo()), code(cu.cuInit(1))])")
    assert answers == [3, 3, 1]
