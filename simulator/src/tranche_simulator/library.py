"""The simulator's control interface (native/tranche_sim.h) as Python functions, and loading NVML from the simulator."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_uint, c_ulonglong, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from tranche_simulator.build import ensure_built
from tranche_simulator.errors import GpuInUse, GpuUnknown, NotPermitted, SimulatorError
from tranche_simulator.recipe import BuiltSimulator

ANY_GPU = 0xFFFFFFFF
NO_INSTANCE = 0xFFFFFFFF
MAX_CLIENTS = 1024
MOST_GPUS = 32
"""On one machine: TRANCHE_SIM_MAX_GPUS of tranche_sim.h."""

INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 2, 4, 6, 9
VERSION_MISMATCH, IN_USE, MEMORY, INVALID_STATE = 18, 19, 20, 29


class GpuSpecStruct(ctypes.Structure):
    """trancheSimGpuSpec_t."""

    _fields_ = [
        ("board", c_char * 48),
        ("name", c_char * 96),
        ("pci_device_id", c_uint),
        ("swapped", c_uint),
        ("numa_node", c_uint),
        ("pci_domain", c_uint),
        ("pci_bus", c_uint),
        ("pci_device", c_uint),
    ]


class DescriptionStruct(ctypes.Structure):
    """trancheSimDescription_t."""

    _fields_ = [
        ("name", c_char * 96),
        ("gpu_count", c_uint),
        ("owner_uid", c_uint),
        ("time_scale", c_double),
        ("seed", c_ulonglong),
        ("boots", c_ulonglong),
        ("changed_at", c_ulonglong),
        ("driver", c_char * 32),
    ]


class GpuDescriptionStruct(ctypes.Structure):
    """trancheSimGpuDescription_t."""

    _fields_ = [
        ("board", c_char * 48),
        ("name", c_char * 96),
        ("uuid", c_char * 96),
        ("bus_id", c_char * 32),
        ("pci_device_id", c_uint),
        ("pci_subsystem_id", c_uint),
        ("pci_class", c_uint),
        ("swapped", c_uint),
        ("numa_node", c_uint),
        ("mig_supported", c_uint),
        ("mig_current", c_uint),
        ("mig_pending", c_uint),
        ("gpu_instances", c_uint),
        ("compute_instances", c_uint),
        ("clients", c_uint),
        ("lost", c_uint),
        ("stuck_mode", c_uint),
        ("memory_bytes", c_ulonglong),
        ("unverified", c_uint),
        ("generation", c_ulonglong),
    ]


class ClientStruct(ctypes.Structure):
    """trancheSimClient_t."""

    _fields_ = [
        ("pid", c_uint),
        ("gpu", c_uint),
        ("gpu_instance_id", c_uint),
        ("compute_instance_id", c_uint),
        ("phantom", c_uint),
        ("utilization_percent", c_uint),
        ("mps_server", c_uint),
        ("memory_bytes", c_ulonglong),
        ("compute_nanoseconds", c_ulonglong),
        ("name", c_char * 64),
    ]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "trancheSimCreate": (c_char_p, c_char_p, POINTER(GpuSpecStruct), c_uint, c_double, c_ulonglong),
    "trancheSimOpen": (c_char_p, POINTER(c_void_p)),
    "trancheSimClose": (c_void_p,),
    "trancheSimDescribe": (c_void_p, POINTER(DescriptionStruct)),
    "trancheSimDescribeGpu": (c_void_p, c_uint, POINTER(GpuDescriptionStruct)),
    "trancheSimListClients": (c_void_p, POINTER(ClientStruct), POINTER(c_uint)),
    "trancheSimSetTimeScale": (c_void_p, c_double),
    "trancheSimSetDriver": (c_void_p, c_char_p),
    "trancheSimSetContextMemory": (c_void_p, c_ulonglong),
    "trancheSimSetLimitsBackend": (c_void_p, c_uint),
    "trancheSimReboot": (c_void_p,),
    "trancheSimUpdateCapabilityFiles": (c_void_p,),
    "trancheSimResetGpu": (c_void_p, c_uint),
    "trancheSimInjectError": (c_void_p, c_char_p, c_uint, c_uint, c_uint),
    "trancheSimInjectLatency": (c_void_p, c_char_p, c_double, c_uint),
    "trancheSimInjectXid": (c_void_p, c_uint, c_uint, c_uint, c_ulonglong),
    "trancheSimInjectLost": (c_void_p, c_uint, c_uint),
    "trancheSimInjectStuckMode": (c_void_p, c_uint, c_uint),
    "trancheSimInjectBusy": (c_void_p, c_char_p, c_uint, c_char_p, c_ulonglong),
    "trancheSimClearInjections": (c_void_p,),
    "trancheSimAttach": (c_void_p, c_char_p, c_ulonglong, c_uint, POINTER(c_uint)),
    "trancheSimDetach": (c_void_p, c_uint),
    "trancheSimChangeCalls": (c_void_p, c_char_p, POINTER(c_ulonglong)),
}


@cache
def control_library() -> ctypes.CDLL:
    """The simulator's control build, which NVML programs in this process do not find."""
    library = ctypes.CDLL(str(ensure_built().control), use_errno=True)
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_uint
    library.nvmlErrorString.argtypes = (c_uint,)
    library.nvmlErrorString.restype = c_char_p
    library.trancheSimChangeFunction.argtypes = (c_uint,)
    library.trancheSimChangeFunction.restype = c_char_p
    library.trancheSimSpecialFault.argtypes = (c_uint,)
    library.trancheSimSpecialFault.restype = c_char_p
    return library


def explain(code: int, doing: str) -> SimulatorError:
    """The error for a return code of the control interface; `doing` says what the caller tried."""
    text = (control_library().nvmlErrorString(code) or b"").decode()
    message = f"{doing}: {text}"
    match code:
        case 4:
            return NotPermitted(message, hint="use the account that created the simulated machine, or root")
        case 6:
            return GpuUnknown(message, hint="`nvidia-smi -L` lists the UUIDs of the simulated machine")
        case 9:
            return SimulatorError(message, hint="the machine's state file is gone; create the machine again")
        case 18:
            return SimulatorError(
                f"{doing}: the state file is invalid, or another version of the simulator wrote it",
                hint="destroy the simulated machine and create it again",
            )
        case 19 | 20:
            return GpuInUse(message, hint="`nvidia-smi` shows the processes that use it")
        case 29:
            return GpuInUse(message, hint="a GPU in MIG mode runs programs only on its MIG devices; use one of them")
        case _:
            return SimulatorError(message)


def check(code: int, doing: str) -> None:
    """Raise what a return code means, unless it is success."""
    if code != 0:
        raise explain(code, doing)


def open_state(state: Path) -> c_void_p:
    """Open a state file; the handle stays valid until the process ends.

    Raises:
        SimulatorError: no such file, or it is of another version.
    """
    handle = c_void_p()
    check(control_library().trancheSimOpen(os.fsencode(state), byref(handle)), f"cannot open {state}")
    return handle


def change_functions() -> Iterator[str]:
    """Names of the functions whose calls count as changes."""
    library = control_library()
    index = 0
    while (name := library.trancheSimChangeFunction(index)) is not None:
        yield name.decode()
        index += 1


def special_faults() -> Iterator[str]:
    """Names of possible failures that are no functions of NVML or CUDA: a reset, and what MPS does."""
    library = control_library()
    index = 0
    while (name := library.trancheSimSpecialFault(index)) is not None:
        yield name.decode()
        index += 1


def can_fail(name: str) -> bool:
    """Whether injecting an error into that name has any effect."""
    if name.startswith("nvml"):
        return hasattr(control_library(), name)
    return name in special_faults() or (name.startswith("cu") and _has_cuda_function(name))


def _has_cuda_function(name: str) -> bool:
    """Whether the simulator's CUDA driver has a function of that name, in any version."""
    library = ctypes.CDLL(str(ensure_built().cuda))
    return any(hasattr(library, name + version) for version in ("", "_v2", "_v3", "_v4"))


def preload(state: Path) -> BuiltSimulator:
    """Make NVML programs in this process see the simulated machine at `state`.

    Loads the simulator under NVML's soname, so that nvidia-ml-py's own look-up of `libnvidia-ml.so.1` finds it, and names the
    machine in the environment, which child processes inherit. Call it before anything initialises NVML. Returns the loaded build.

    Raises:
        SimulatorError: the simulator cannot be built or loaded.
    """
    built = ensure_built()
    library = built.library
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise SimulatorError(f"cannot load the simulator {library}: {error}") from error
    os.environ["TRANCHE_SIM_STATE"] = str(state)
    return built
