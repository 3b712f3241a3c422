"""Whether a GPU can be used again after an error, by the driver's word."""

from __future__ import annotations

import pynvml


def needs_recovery(gpu_uuid: str) -> bool:
    """Whether the GPU is lost, or must by the driver's word be reset, or the machine restarted, before it is used again.

    False where the driver does not know the question.
    """
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except pynvml.NVMLError as error:
        return bool(error.value == pynvml.NVML_ERROR_GPU_IS_LOST)
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return False
    return bool(value.value.uiVal != pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
