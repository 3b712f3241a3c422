"""Keeps every Python process from changing a setting of a real GPU: tests put this folder onto PYTHONPATH.

Calls that change something are refused, as for a user without rights. The compute mode, which MPS needs, is only remembered, and
read back from there. Each such call leaves a line in `calls`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

_CHANGES = (
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceClear",
    "nvmlDeviceCreate",
    "nvmlDeviceModify",
    "nvmlDeviceReset",
    "nvmlDeviceSet",
    "nvmlGpuInstanceCreate",
    "nvmlGpuInstanceDestroy",
    "nvmlSystemSet",
)


def _guard(nvml: Any, folder: Path) -> None:
    really = nvml.nvmlDeviceGetComputeMode

    def note(text: str) -> None:
        with (folder / "calls").open("a") as calls:
            calls.write(f"{text}\n")

    def file_of(handle: Any) -> Path:
        return folder / f"mode-{nvml.nvmlDeviceGetUUID(handle)}"

    def get_mode(handle: Any) -> int:
        try:
            return int(file_of(handle).read_text())
        except OSError:
            return int(really(handle))

    def set_mode(handle: Any, mode: int) -> None:
        note(f"compute mode {mode}")
        file_of(handle).write_text(str(mode))

    def refusing(name: str) -> Any:
        def refuse(*_: Any, **__: Any) -> NoReturn:
            note(f"refused {name}")
            raise nvml.NVMLError(nvml.NVML_ERROR_NO_PERMISSION)

        return refuse

    for name in [name for name in vars(nvml) if name.startswith(_CHANGES)]:
        setattr(nvml, name, refusing(name))
    nvml.nvmlDeviceGetComputeMode, nvml.nvmlDeviceSetComputeMode = get_mode, set_mode


if "GPU_GUARD" in os.environ:
    import pynvml

    _guard(pynvml, Path(os.environ["GPU_GUARD"]))
