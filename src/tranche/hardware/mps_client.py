"""A client of MPS that joins and leaves at once: the only proof that a server admits clients.

A server that a client's death has wedged is ACTIVE for its daemon, answers every command, and logs nothing. A new client of it
waits in cuInit without end, as does a client of a stopped server. So an extra client goes ahead, in a process that can be ended.
It makes no context, and leaves nothing on the GPU.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tranche.core.errors import MpsFailed
from tranche.hardware.mps_environment import PIPES

_JOIN: Final = """
import ctypes, os
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    os._exit(0)
os.write(1, b"%d" % cuda.cuInit(0))
"""
_END_SECONDS: Final = 1.0
_ERRORS: Final = {
    800: "NOT_PERMITTED",
    805: "MPS_CONNECTION_FAILED",
    806: "MPS_RPC_FAILURE",
    807: "MPS_SERVER_NOT_READY",
    808: "MPS_MAX_CLIENTS_REACHED",
    809: "MPS_MAX_CONNECTIONS_REACHED",
    810: "MPS_CLIENT_TERMINATED",
}
"""CUDA's errors about MPS. Any other result of cuInit is not the server's."""


@dataclass(frozen=True, slots=True)
class ClientResult:
    """How the client fared. `silent`: no answer came in time. `error` is CUDA's, 0 for none, None if there was no answer."""

    error: int | None = None
    silent: bool = False

    @property
    def refused(self) -> str:
        """CUDA's word for the refusal, "" if the client was admitted or heard nothing of MPS."""
        name = _ERRORS.get(self.error or 0)
        return "" if name is None else f"CUDA_ERROR_{name} ({self.error})"

    @property
    def out_of_reach(self) -> bool:
        """Whether the server does not answer the daemon either: it died, or does not start."""
        return self.error in (805, 806)


def join(pipes: Path, environment: Mapping[str, str], device_uuid: str, *, seconds: float) -> ClientResult:
    """Send a client of this user to the daemon with its sockets in `pipes`, and wait up to `seconds`. It has a server started."""
    if not sys.executable:
        return ClientResult()
    try:
        client = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _JOIN],
            env={**environment, PIPES: str(pipes), "CUDA_VISIBLE_DEVICES": device_uuid},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
    except OSError as error:
        raise MpsFailed(f"cannot start a client of the MPS daemon of {device_uuid}: {error}") from error
    said, silent = b"", False
    try:
        said, _ = client.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        said, silent = error.stdout or b"", True
    finally:
        client.kill()
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver cannot be killed
            client.wait(_END_SECONDS)
    if said.isdigit():
        return ClientResult(int(said))
    return ClientResult(silent=silent)
