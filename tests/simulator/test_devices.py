"""What NVML tells of a GPU: identity, memory, readings, handles, versioned structs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml as nvml
import pytest

from tests.simulator.machines import enable_mig, error_of, gpu, make_machine, talking_to
from tests.simulator.smi_runner import Smi
from tranche_simulator import MACHINE_TYPES, SimulatedMachine
from tranche_simulator.errors import InvalidRequest

INVALID, NOT_SUPPORTED, NOT_FOUND, TOO_SMALL, NO_DRIVER, WRONG_VERSION = 2, 3, 6, 7, 9, 25


@pytest.fixture
def p4d(tmp_path: Path) -> SimulatedMachine:
    return SimulatedMachine.create(machine_type="p4d.24xlarge", root=tmp_path, time_scale=0.0)


def test_versions_and_count(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        assert nvml.nvmlSystemGetDriverVersion() == "580.95.05"
        assert nvml.nvmlSystemGetCudaDriverVersion() == 13000
        assert nvml.nvmlDeviceGetCount() == 8
        assert nvml.nvmlUnitGetCount() == 0


def test_every_way_to_a_handle_leads_to_the_same_gpu(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        device = gpu(3)
        uuid = nvml.nvmlDeviceGetUUID(device)
        pci = nvml.nvmlDeviceGetPciInfo(device)
        assert pci.busId == "00000000:20:1D.0"
        assert pci.pciDeviceId == 0x20B010DE
        same = [
            nvml.nvmlDeviceGetHandleByUUID(uuid),
            nvml.nvmlDeviceGetHandleByPciBusId("00000000:20:1D.0"),
            nvml.nvmlDeviceGetHandleByPciBusId("0000:20:1d.0"),
            nvml.nvmlDeviceGetHandleByPciBusId("20:1D"),
            nvml.nvmlDeviceGetHandleBySerial(nvml.nvmlDeviceGetSerial(device)),
        ]
        assert {nvml.nvmlDeviceGetUUID(handle) for handle in same} == {uuid}
        assert error_of(nvml.nvmlDeviceGetHandleByPciBusId, "20:1D.1") == INVALID
        assert error_of(nvml.nvmlDeviceGetHandleByPciBusId, "20:1E.0") == NOT_FOUND
        assert error_of(nvml.nvmlDeviceGetHandleByPciBusId, "nonsense") == INVALID
        assert error_of(nvml.nvmlDeviceGetHandleByUUID, "GPU-00000000-0000-0000-0000-000000000000") == NOT_FOUND
        assert error_of(nvml.nvmlDeviceGetHandleByIndex, 8) == INVALID


def test_foreign_pointers_are_no_handles(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        for address in (0, 1, 0xDEADBEEF, 2**64 - 1):
            foreign = ctypes.cast(ctypes.c_void_p(address), type(gpu()))
            assert error_of(nvml.nvmlDeviceGetName, foreign) == INVALID


def test_identity_and_numa(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        assert [nvml.nvmlDeviceGetMinorNumber(gpu(i)) for i in range(8)] == list(range(8))
        assert [nvml.nvmlDeviceGetNumaNodeId(gpu(i)) for i in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
        assert len({nvml.nvmlDeviceGetSerial(gpu(i)) for i in range(8)}) == 8
        assert nvml.nvmlDeviceGetCudaComputeCapability(gpu()) == (8, 0)
        assert nvml.nvmlDeviceGetArchitecture(gpu()) == nvml.NVML_DEVICE_ARCH_AMPERE
        assert list(nvml.nvmlDeviceGetMemoryAffinity(gpu(5), 1, 0)) == [0b10]
        near = nvml.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(1))
        far = nvml.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(7))
        assert (near, far) == (nvml.NVML_TOPOLOGY_NODE, nvml.NVML_TOPOLOGY_SYSTEM)
        assert len(nvml.nvmlDeviceGetTopologyNearestGpus(gpu(0), nvml.NVML_TOPOLOGY_SYSTEM)) == 4


def test_memory_follows_the_clients(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        idle = nvml.nvmlDeviceGetMemoryInfo(gpu(), version=nvml.nvmlMemory_v2)
        assert (idle.total, idle.reserved, idle.used) == (40960 << 20, 518 << 20, 0)
        assert idle.free == idle.total - idle.reserved
        assert nvml.nvmlDeviceGetMemoryInfo(gpu()).used == 518 << 20, "version 1 counts the reserved part as used"
        with p4d.attached(p4d.gpus()[0].uuid, memory=3 << 30, utilization=70):
            busy = nvml.nvmlDeviceGetMemoryInfo(gpu(), version=nvml.nvmlMemory_v2)
            assert (busy.used, busy.free) == (3 << 30, idle.free - (3 << 30))
            assert nvml.nvmlDeviceGetUtilizationRates(gpu()).gpu == 70
            assert nvml.nvmlDeviceGetPowerUsage(gpu()) > nvml.nvmlDeviceGetPowerUsage(gpu(1))
        assert nvml.nvmlDeviceGetUtilizationRates(gpu()).gpu == 0


def test_utilization_is_not_available_in_mig_mode(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        nvml.nvmlDeviceSetMigMode(gpu(), 1)
        p4d.reset_gpu(0)
        assert error_of(nvml.nvmlDeviceGetUtilizationRates, gpu()) == NOT_SUPPORTED
        assert nvml.nvmlDeviceGetUtilizationRates(gpu(1)).gpu == 0


def test_readings_of_a_passively_cooled_board(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        device = gpu()
        assert error_of(nvml.nvmlDeviceGetFanSpeed, device) == NOT_SUPPORTED
        assert nvml.nvmlDeviceGetPowerManagementLimit(device) == 400_000
        assert nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM) == 1410
        assert nvml.nvmlDeviceGetEccMode(device) == [1, 1]
        assert nvml.nvmlDeviceGetPersistenceMode(device) == 1
        assert nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU) > 20
        assert nvml.nvmlDeviceGetBAR1MemoryInfo(device).bar1Total == 64 << 30
        assert nvml.nvmlDeviceGetNvLinkState(device, 0) == 1
        assert error_of(nvml.nvmlDeviceGetNvLinkState, device, 12) == INVALID


def test_settings_are_kept_in_the_machine(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        nvml.nvmlDeviceSetComputeMode(gpu(2), nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        nvml.nvmlDeviceSetPersistenceMode(gpu(2), 0)
    with talking_to(p4d):
        assert nvml.nvmlDeviceGetComputeMode(gpu(2)) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        assert nvml.nvmlDeviceGetPersistenceMode(gpu(2)) == 0
        assert nvml.nvmlDeviceGetComputeMode(gpu(1)) == nvml.NVML_COMPUTEMODE_DEFAULT
        assert error_of(nvml.nvmlDeviceSetComputeMode, gpu(), 1) == INVALID


def test_text_buffers_that_are_too_small(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        buffer = ctypes.create_string_buffer(4)
        assert nvml.nvmlLib.nvmlDeviceGetName(gpu(), buffer, 4) == TOO_SMALL
        assert nvml.nvmlLib.nvmlDeviceGetUUID(gpu(), None, 96) == INVALID


def test_versioned_structs_refuse_another_size(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        enable_mig(p4d)
        device = gpu()
        instance = nvml.nvmlDeviceCreateGpuInstance(device, 0)

        def profile_info(version: int) -> int:
            buffer = (ctypes.c_uint * 64)(version)
            return int(nvml.nvmlLib.nvmlDeviceGetGpuInstanceProfileInfoV(device, 0, buffer))

        def profile_by_id(version: int) -> int:
            buffer = (ctypes.c_uint * 64)(version)
            return int(nvml.nvmlLib.nvmlDeviceGetGpuInstanceProfileInfoByIdV(device, 19, buffer))

        def compute_info(version: int) -> int:
            buffer = (ctypes.c_uint * 64)(version)
            return int(nvml.nvmlLib.nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 0, 0, buffer))

        def memory_info(version: int) -> int:
            buffer = (ctypes.c_uint * 64)(version)
            return int(nvml.nvmlLib.nvmlDeviceGetMemoryInfo_v2(device, buffer))

        def process_list(version: int) -> int:
            buffer = (ctypes.c_uint * 64)(version)
            return int(nvml.nvmlLib.nvmlDeviceGetRunningProcessDetailList(device, buffer))

        good = {
            profile_info: (0x02000098, 0x03000098),
            profile_by_id: (0x02000098, 0x03000098),
            compute_info: (0x02000088, 0x0300008C),
            memory_info: (0x02000028,),
            process_list: (0x01000018,),
        }
        for call, versions in good.items():
            assert [call(version) for version in versions] == [0] * len(versions), call.__name__
            for version in (0, 0x01000098, 0x02000099, 0x04000098, 0xFFFFFFFF):
                assert call(version) == WRONG_VERSION, (call.__name__, hex(version))


def test_version_3_of_the_profile_info_has_no_p2p_and_has_capabilities(tmp_path: Path) -> None:
    class InfoV3(ctypes.Structure):
        _fields_ = [
            ("version", ctypes.c_uint),
            ("numbers", ctypes.c_uint * 9),
            ("memory_mb", ctypes.c_ulonglong),
            ("name", ctypes.c_char * 96),
            ("capabilities", ctypes.c_uint),
        ]

    graphics = nvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX
    with talking_to(make_machine(tmp_path, "RTX-PRO-6000-96GB")):
        info = InfoV3(version=0x03000098)
        assert nvml.nvmlLib.nvmlDeviceGetGpuInstanceProfileInfoV(gpu(), graphics, ctypes.byref(info)) == 0
        assert list(info.numbers) == [35, 2, 2, 94, 2, 2, 2, 2, 0]
        assert info.memory_mb == 48512
        assert info.name == b"MIG 2g.48gb+gfx"
        assert info.capabilities == 2


def test_error_strings() -> None:
    assert nvml.nvmlErrorString(23) == "Insufficient Resources"
    assert nvml.nvmlErrorString(19) == "In use by another client"
    assert nvml.nvmlErrorString(4) == "Insufficient Permissions"
    assert nvml.nvmlErrorString(12345) == "Unknown Error"


@pytest.mark.parametrize("name", MACHINE_TYPES)
def test_every_machine_type_shows_its_gpus(tmp_path: Path, name: str) -> None:
    machine = SimulatedMachine.create(machine_type=name, root=tmp_path)
    with talking_to(machine):
        count = nvml.nvmlDeviceGetCount()
        assert count == len(MACHINE_TYPES[name].gpus)
        assert len({nvml.nvmlDeviceGetPciInfo(gpu(index)).busId for index in range(count)}) == count
        assert len({nvml.nvmlDeviceGetUUID(gpu(index)) for index in range(count)}) == count


def test_workstation_is_the_workstation_edition(tmp_path: Path) -> None:
    with talking_to(SimulatedMachine.create(machine_type="rtx-pro-6000-workstation", root=tmp_path)):
        assert nvml.nvmlDeviceGetName(gpu()) == "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
        assert nvml.nvmlDeviceGetPciInfo(gpu()).pciDeviceId == 0x2BB110DE


def test_initialisation_is_counted(p4d: SimulatedMachine) -> None:
    with talking_to(p4d):
        nvml.nvmlInit()
        nvml.nvmlShutdown()
        assert nvml.nvmlDeviceGetCount() == 8
    assert error_of(nvml.nvmlDeviceGetCount) == nvml.NVML_ERROR_UNINITIALIZED
    assert error_of(nvml.nvmlShutdown) == nvml.NVML_ERROR_UNINITIALIZED


def test_a_destroyed_machine_has_no_driver(p4d: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    with talking_to(p4d):
        p4d.destroy()
        assert error_of(nvml.nvmlDeviceSetPersistenceMode, gpu(), 0) == NO_DRIVER, "a change needs the file"
    monkeypatch.setenv("TRANCHE_SIM_STATE", str(p4d.state))
    assert error_of(nvml.nvmlInit) == NO_DRIVER


@pytest.mark.parametrize(
    ("driver", "cuda", "library"),
    [
        ("470.256.02", 11040, "11.470.256.02"),
        ("535.104.05", 12020, "12.535.104.05"),
        ("580.95.05", 13000, "13.580.95.05"),
        ("615.71.09", 13040, "13.615.71.09"),
    ],
)
def test_a_machine_of_another_driver(tmp_path: Path, driver: str, cuda: int, library: str) -> None:
    machine = SimulatedMachine.create("other", boards=["T4"], root=tmp_path, time_scale=0, driver=driver)
    assert machine.driver == driver
    with talking_to(machine):
        assert nvml.nvmlSystemGetDriverVersion() == driver
        assert nvml.nvmlSystemGetCudaDriverVersion() == cuda
        assert nvml.nvmlSystemGetNVMLVersion() == library
    assert f"Driver Version: {driver} " in Smi(machine).succeed()
    machine.set_driver("580.95.05")
    assert machine.driver == "580.95.05"


@pytest.mark.parametrize("version", ["580", "580.95.05.1", "new", "580.x"])
def test_what_is_no_version_of_a_driver(tmp_path: Path, version: str) -> None:
    with pytest.raises(InvalidRequest):
        SimulatedMachine.create("other", boards=["T4"], root=tmp_path, driver=version)
    assert SimulatedMachine.list(tmp_path) == []
