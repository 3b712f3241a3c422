"""What the driver reports by itself: XID errors and changes of the cut. Also whether a GPU can be used after an error."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pynvml

from tranche.hardware.nvml_errors import explained

_WHOLE_GPU = 0xFFFFFFFF
_WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventMigConfigChange


class GpuEventKind(StrEnum):
    """XID: the driver met an error. CUT_CHANGED: instances were made or destroyed, or the MIG mode changed."""

    XID = "xid"
    CUT_CHANGED = "cut-changed"


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """One report. `xid` is the error's number (NVIDIA's catalogue of XIDs), 0 for other kinds.

    The instance id is None if the report is about the whole GPU; `gpu_uuid` is "" if the driver cannot say which GPU.
    """

    kind: GpuEventKind
    gpu_uuid: str
    xid: int = 0
    gpu_instance_id: int | None = None


class GpuEventStream:
    """Reports about some GPUs since its creation. One thread at a time may wait."""

    def __init__(self, gpu_uuids: Iterable[str]) -> None:
        """Register for what each GPU can report; leaves out GPUs that report nothing or are lost."""
        with explained("listen to the driver's events"):
            self._set = pynvml.nvmlEventSetCreate()
            self.gpu_uuids = tuple(uuid for uuid in gpu_uuids if self._register(uuid))

    def wait(self, seconds: float) -> GpuEvent | None:
        """The next report, or None if none comes in time. HardwareError if the stream is no longer usable."""
        with explained("wait for the driver's events"):
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    raise
                return None
            if data.eventType not in (pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventMigConfigChange):
                return None
            is_xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
            return GpuEvent(
                GpuEventKind.XID if is_xid else GpuEventKind.CUT_CHANGED,
                _uuid(data.device),
                data.eventData if is_xid else 0,
                _instance(data.gpuInstanceId),
            )

    def close(self) -> None:
        """Stop listening."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._set)

    def _register(self, gpu_uuid: str) -> bool:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
            supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _WANTED
            if not supported:
                return False
            pynvml.nvmlDeviceRegisterEvents(handle, supported, self._set)
        except pynvml.NVMLError as error:
            if error.value in (
                pynvml.NVML_ERROR_NOT_SUPPORTED,
                pynvml.NVML_ERROR_GPU_IS_LOST,
                pynvml.NVML_ERROR_NOT_FOUND,
            ):
                return False
            raise
        return True


def _uuid(handle: Any) -> str:
    try:
        return str(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError:
        return ""


def _instance(value: int) -> int | None:
    return None if value == _WHOLE_GPU else int(value)


def needs_recovery(gpu_uuid: str) -> bool:
    """Whether the GPU is lost, or the driver says to reset it or restart the machine before further use.

    False if the driver does not support the question.
    """
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except pynvml.NVMLError as error:
        return bool(error.value == pynvml.NVML_ERROR_GPU_IS_LOST)
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return False
    return bool(value.value.uiVal != pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
