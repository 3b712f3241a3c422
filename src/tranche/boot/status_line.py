"""The line that `systemctl status` shows of a service, said by systemd's notify protocol."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

_MOST_BYTES = 1000


def say_status(text: str, environ: Mapping[str, str], *, patience: float = 0.0) -> None:
    """Show the text as the service's status; nothing happens outside of a service that may notify.

    A service manager that is busy takes no more than a few messages: this one is dropped after `patience` seconds.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    line = " ".join(text.split())
    message = b"STATUS=" + line.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore").encode()
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.settimeout(patience)
        client.sendto(message, "\0" + address[1:] if address.startswith("@") else address)
