"""Limits of a GPU's memory for control groups, as drivers from release 615 on keep them, and trials of them.

A trial uses a throwaway control group. NVML must be initialised.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pynvml

from tranche.core.errors import HardwareError, TrancheError, VerificationFailed
from tranche.core.quantity import GIB, MIB
from tranche.hardware import limit_canary
from tranche.hardware.control_groups import make_group, own_group, populated, remove_group

_NO_LIMIT: Final = 2**64 - 1
_NOT_THERE: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def limit_memory(gpu_uuid: str, group: Path, *, soft: int, hard: int) -> None:
    """Let the processes of a group use at most `hard` bytes of the GPU together, and `soft` whatever others do.

    HardwareError if the driver refuses; there is then nothing to lift.
    """
    try:
        _set(gpu_uuid, group, soft, hard)
    except pynvml.NVMLError as error:
        raise _refused("limit the memory of", group, gpu_uuid, error) from error


def verify_limit(gpu_uuid: str, group: Path, *, soft: int, hard: int) -> None:
    """VerificationFailed if the driver reports other limits for the group; HardwareError if it reports none."""
    try:
        shown = _limits(gpu_uuid, group)
    except pynvml.NVMLError as error:
        raise _refused("read back the limit of", group, gpu_uuid, error) from error
    if shown != (soft, hard):
        raise VerificationFailed(
            f"Tranche limited {group} to {hard} bytes of GPU {gpu_uuid}, but the driver shows {shown[1]}"
        )


def has_limit(gpu_uuid: str, group: Path) -> bool:
    """Whether the driver reports a limit for the group. If it reports none, or does not answer, there is none to lift."""
    try:
        return _limits(gpu_uuid, group) != (0, _NO_LIMIT)
    except pynvml.NVMLError:
        return False


def lift_limit(gpu_uuid: str, group: Path) -> None:
    """Remove the limits of a group. Do so before the group goes, or its soft limit stays with the groups above.

    HardwareError if the driver refuses; a GPU that is lost or gone has nothing left to lift.
    """
    try:
        _set(gpu_uuid, group, 0, _NO_LIMIT)
    except pynvml.NVMLError as error:
        if gpu_answers(gpu_uuid):
            raise _refused("lift the limit of", group, gpu_uuid, error) from error


def gpu_answers(gpu_uuid: str) -> bool:
    """False only if the driver says that it has lost the GPU, or does not know it."""
    try:
        pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid))
    except pynvml.NVMLError as error:
        return error.value not in _NOT_THERE
    return True


def _limits(gpu_uuid: str, group: Path) -> tuple[int, int]:
    """The group's soft and hard limit, in bytes."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(group).encode())
    pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)
    return limits.softLimit, limits.hardLimit


def _set(gpu_uuid: str, group: Path, soft: int, hard: int) -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(str(group).encode(), soft, hard)
    pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)


def _refused(what: str, group: Path, gpu_uuid: str, error: pynvml.NVMLError) -> HardwareError:
    return HardwareError(
        f"the driver refuses to {what} the control group {group} on GPU {gpu_uuid}: {error} (NVML error {error.value})",
        hint="compare with: nvidia-smi memory-limits --get -n GROUP -i GPU",
    )


_PREFIX: Final = "tranche-trial-"
_LIMIT: Final = GIB
_BEYOND: Final = 64 * MIB
_CANARY_SECONDS: Final = 60.0
_FOREIGN: Final = ("CUDA_", "NVIDIA_VISIBLE_DEVICES")
_NO_DAEMON: Final = "/nonexistent"


def why_refused(gpu_uuid: str) -> str | None:
    """Why the driver limits no group on that GPU, in words; "" if it reports the limit that was set.

    None if the GPU does not answer.
    """
    try:
        with _limited_group(gpu_uuid, _LIMIT):
            return ""
    except TrancheError as error:
        return refusal_of(error) if gpu_answers(gpu_uuid) else None


def refusal_of(error: TrancheError) -> str:
    """What went wrong with a limit, in words that follow `not by the driver's memory limits:`."""
    cause = error.__cause__
    return f"the driver refuses them: {cause}" if isinstance(cause, pynvml.NVMLError) else error.message


def keeps_limits(gpu_uuid: str, room: int, context: int, environment: Mapping[str, str]) -> bool | None:
    """Whether the driver refuses a program more memory than its group's limit; None if the trial cannot tell.

    The program ends at once. If nothing refuses it, it takes at most `room` bytes of the GPU, including up to `context` bytes for
    its context. `environment` leads to the driver.
    """
    limit = min(room - context - _BEYOND, _LIMIT)
    # With too little free memory, the trial would not show who refused.
    if limit <= 0 or _free(gpu_uuid) < 2 * (limit + _BEYOND + context):
        return None
    try:
        with _limited_group(gpu_uuid, limit) as group:
            code = _ask(gpu_uuid, group, limit + _BEYOND, environment)
    except (TrancheError, OSError, subprocess.TimeoutExpired):
        return None
    return {limit_canary.KEPT: True, limit_canary.NOT_KEPT: False}.get(code)


@contextmanager
def _limited_group(gpu_uuid: str, limit: int) -> Iterator[Path]:
    """A group whose limit was read back. With a soft limit of 0, groups above keep nothing if this process is killed."""
    parent = own_group()
    if parent is None:
        raise HardwareError("cgroup v2 is not mounted")
    _clear(parent, gpu_uuid)
    group = parent / f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    make_group(group)
    try:
        limit_memory(gpu_uuid, group, soft=0, hard=limit)
        try:
            verify_limit(gpu_uuid, group, soft=0, hard=limit)
            yield group
        finally:
            lift_limit(gpu_uuid, group)
    finally:
        remove_group(group)


def _clear(parent: Path, gpu_uuid: str) -> None:
    """Remove the groups of killed trials."""
    for folder in parent.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists() and not populated(folder):
            with suppress(HardwareError):
                lift_limit(gpu_uuid, folder)
            remove_group(folder)


def _free(gpu_uuid: str) -> int:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)).free)
    except pynvml.NVMLError:
        return 0


def _ask(gpu_uuid: str, group: Path, amount: int, environment: Mapping[str, str]) -> int:
    """The exit code of the canary. It runs without MPS, whose daemon would request the memory in its place."""
    own = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}
    own |= {"CUDA_VISIBLE_DEVICES": gpu_uuid, "CUDA_MPS_PIPE_DIRECTORY": _NO_DAEMON}
    command = [sys.executable, "-I", "-S", limit_canary.__file__, str(group), str(amount)]
    return subprocess.run(
        command,
        env=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_CANARY_SECONDS,
        check=False,
    ).returncode
