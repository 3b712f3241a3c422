"""What hides the machine's network interfaces from the browser of the tests."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from release import without_netlink

_PROGRAM = """
import socket
socket.socket(socket.AF_INET).close()
socket.socketpair()[0].close()
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="runs without the filter")
def test_netlink_is_refused_and_every_other_socket_is_not() -> None:
    done = subprocess.run(
        [sys.executable, without_netlink.__file__, sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Address family not supported by protocol\n"
