"""The driver as a user of the service sees it: behind a fence, through the service, because the user can open no GPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tranche.core.errors import GpuNotFound, ServiceUnavailable, UsageError
from tranche.core.state import GpuState, NodeState
from tranche.hardware.nvml import NvmlDriver
from tranche.node.state.connection import ask
from tranche.planning.decide.recording import view_from_dict

_ANSWERS_WITHIN_SECONDS = 5.0
"""Milliseconds are usual. If the service is stopped, this process looks itself for a while."""
_AGAIN_SECONDS = 60.0


class ServedDriver(NvmlDriver):
    """The GPUs of a machine with a service, which listens on `socket`. It serves requests; this process changes nothing."""

    def __init__(self, socket: Path, *, reset_command: str) -> None:
        super().__init__(reset_command=reset_command, served=True)
        self._socket = socket
        self._ask_at = 0.0

    def observe(self) -> NodeState:
        """Every GPU as it is now, from the service if the machine has a fence."""
        node = self._from_service()
        return super().observe() if node is None else node

    def observe_gpu(self, gpu_uuid: str) -> GpuState:
        """One GPU as it is now."""
        node = self._from_service()
        if node is None:
            return super().observe_gpu(gpu_uuid)
        found = next((gpu for gpu in node if gpu.uuid == gpu_uuid), None)
        if found is None:
            raise GpuNotFound(f"there is no GPU {gpu_uuid}", hint="list the GPUs with: tranche gpus")
        return found

    def _from_service(self) -> NodeState | None:
        """What the service sees; None without a fence, and if no service answers or it is too old to tell."""
        if time.monotonic() < self._ask_at:
            return None
        try:
            _, contents = ask(self._socket, "node", _ANSWERS_WITHIN_SECONDS)
        except (ServiceUnavailable, UsageError):
            self._ask_at = time.monotonic() + _AGAIN_SECONDS
            return None
        return view_from_dict(json.loads(contents[0])).node if contents else None
