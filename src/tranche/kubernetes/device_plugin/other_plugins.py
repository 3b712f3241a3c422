"""Whether another device plugin lives beside this one: somebody accepts connections on a socket named after the resource."""

from __future__ import annotations

import socket
from pathlib import Path


def served_on(folder: Path, resource: str, *, own: Path | None) -> bool:
    """Whether a living plugin has a socket for the resource in the kubelet's folder; `own` does not count.

    NVIDIA's plugin and Tranche name a socket `<plugin>-<last part of the resource's name>.sock`. A plugin that was killed leaves
    its socket behind, and there nobody accepts a connection.
    """
    ending = f"-{resource.rpartition('/')[2]}.sock"
    try:
        sockets = [path for path in folder.iterdir() if path.name.endswith(ending) and path != own and path.is_socket()]
    except OSError:
        return False
    return any(map(_accepts, sockets))


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # Also a process that is too busy to accept: who cannot be asked is left in peace.
            return True
        return True
