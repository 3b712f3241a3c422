"""Becomes a program that hears nothing of the machine's network interfaces: the kernel refuses it netlink sockets.

Chromium drops its connections, those of the loopback too, when an interface comes or goes, and a cluster of another test makes
and removes interfaces. Where the kernel takes no such filter, the program runs without.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from socket import AF_NETLINK
from typing import ClassVar

_SOCKET = {"x86_64": 41, "aarch64": 198}
"""The number of the system call."""
_NUMBER, _FIRST_ARGUMENT = 0, 16  # places in the kernel's seccomp_data
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2


class _Filter(ctypes.Structure):
    _fields_: ClassVar = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _refuse_netlink(socket_call: int) -> None:
    instructions = (
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 0, 3, socket_call),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IF_EQUAL, 0, 1, AF_NETLINK),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    packed = b"".join(struct.pack("HBBI", *each) for each in instructions)
    program = _Filter(len(instructions), packed)
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0)


if __name__ == "__main__":
    if (number := _SOCKET.get(platform.machine())) is not None:
        _refuse_netlink(number)
    os.execv(sys.argv[1], sys.argv[1:])
