"""Asks the NVML library that the dynamic linker finds everything that the simulator models and that changes nothing.

Run as a program it prints the answers as JSON: one flat mapping from a question's name to its answer, or to the error's number
as `error N`. What differs from card to card by nature (UUIDs, serials, temperatures, what is free now) is asked for its form.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pynvml

Answers = dict[str, Any]
_GI_ENUMS = range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
_FORMS = {
    r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "GPU UUID",
    r"MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "MIG UUID",
    r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0": "PCI bus id",
    r"\d{10,13}": "serial",
    r"\d+(\.\d+)+": "version",
}


def probe(index: int) -> Answers:
    """Every answer about one GPU; NVML is initialised."""
    answers: Answers = {}

    def ask(name: str, question: Callable[[], Any], shape: Callable[[Any], Any] = lambda value: value) -> Any:
        try:
            value = question()
        except pynvml.NVMLError as error:
            answers[name] = f"error {error.value}"
            return None
        answers[name] = shape(value)
        return value

    ask("driver version", pynvml.nvmlSystemGetDriverVersion, _form)
    ask("NVML version", pynvml.nvmlSystemGetNVMLVersion, _form)
    ask("CUDA version", pynvml.nvmlSystemGetCudaDriverVersion, lambda value: value // 1000)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    ask("name", lambda: pynvml.nvmlDeviceGetName(gpu))
    ask("uuid", lambda: pynvml.nvmlDeviceGetUUID(gpu), _form)
    ask("serial", lambda: pynvml.nvmlDeviceGetSerial(gpu), _form)
    ask("brand", lambda: pynvml.nvmlDeviceGetBrand(gpu))
    ask("architecture", lambda: pynvml.nvmlDeviceGetArchitecture(gpu))
    ask("compute capability", lambda: pynvml.nvmlDeviceGetCudaComputeCapability(gpu))
    ask("memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu), lambda info: info.total)
    ask("memory v2", lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2), _memory_v2)
    ask(
        "pci", lambda: pynvml.nvmlDeviceGetPciInfo(gpu), lambda pci: [f"{pci.pciDeviceId:08X}", _form(_text(pci.busId))]
    )
    ask("PCI subsystem", lambda: pynvml.nvmlDeviceGetPciInfo(gpu), lambda pci: f"{pci.pciSubSystemId:08X}")
    ask("addressing mode", lambda: pynvml.nvmlDeviceGetAddressingMode(gpu))
    ask("GPM support", lambda: pynvml.nvmlGpmQueryDeviceSupport(gpu), lambda support: support.isSupportedDevice)
    ask("remapped rows", lambda: pynvml.nvmlDeviceGetRemappedRows(gpu), len)
    ask("minor number", lambda: pynvml.nvmlDeviceGetMinorNumber(gpu), lambda value: type(value).__name__)
    ask("is a MIG device", lambda: pynvml.nvmlDeviceIsMigDeviceHandle(gpu), lambda value: value.value)
    ask("MIG mode", lambda: pynvml.nvmlDeviceGetMigMode(gpu))
    ask("most MIG devices", lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))
    ask("first MIG device", lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0), lambda handle: "a handle")
    ask("GPU instance id of the GPU", lambda: pynvml.nvmlDeviceGetGpuInstanceId(gpu))
    ask("attributes of the GPU", lambda: pynvml.nvmlDeviceGetAttributes_v2(gpu), lambda value: "attributes")
    ask("GPU instance 1", lambda: pynvml.nvmlDeviceGetGpuInstanceById(gpu, 1), lambda handle: "a handle")
    ask("GPU beyond the last", lambda: pynvml.nvmlDeviceGetHandleByIndex(pynvml.nvmlDeviceGetCount()), str)
    ask("GPU of a foreign UUID", lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-0"), str)
    for enum in _GI_ENUMS:
        _ask_profile(ask, gpu, enum)
    ask("placements of a foreign profile", lambda: _placements(gpu, 63))
    ask("capacity of a foreign profile", lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 63))
    return answers


def _ask_profile(ask: Callable[..., Any], gpu: Any, enum: int) -> None:
    plain = ask(f"profile {enum}", lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, enum, version=1), _fields)
    ask(f"profile {enum} v2", lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, enum, version=2), _fields)
    if plain is None:
        return
    ask(f"profile {enum} placements", lambda: _placements(gpu, plain.id))
    ask(f"profile {enum} capacity", lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, plain.id))


def _placements(gpu: Any, profile_id: int) -> list[list[int]]:
    count = pynvml.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, pynvml.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, array, pynvml.byref(count))
    return sorted([array[i].start, array[i].size] for i in range(count.value))


def _fields(info: Any) -> dict[str, Any]:
    values = {name: getattr(info, name) for name, *_ in info._fields_ if name != "version"}
    return {name: _text(value) if isinstance(value, bytes) else value for name, value in values.items()}


def _memory_v2(info: Any) -> list[int]:
    return [info.total, info.reserved >> 20]  # the catalogue has MiB


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _form(value: str) -> str:
    return next((form for pattern, form in _FORMS.items() if re.fullmatch(pattern, value)), f"another form: {value}")


def main() -> None:
    """Print the answers about the GPU whose index is the first argument."""
    pynvml.nvmlInit()
    json.dump(probe(int(sys.argv[1])), sys.stdout)


if __name__ == "__main__":
    main()
