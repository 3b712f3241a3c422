"""Keeps this process's memory in huge pages: the fork that becomes a command then copies a small page table, and ends sooner.

A process that has collected all tests holds more than 100 MB, and forks thousands of times. Where the kernel cannot do this,
forks take longer.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_HUGE = 2 * 2**20
_GROWN = 16 * 2**20
"""So much new memory is worth another call, which takes about 10 ms."""
_MADV_COLLAPSE = 25
_MADVISE = ctypes.CDLL(None).madvise
_MADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_resident = 0


def use_huge_pages() -> None:
    """Move the process's memory to huge pages if it has grown since the last call."""
    global _resident
    if _resident_now() < _resident + _GROWN:
        return
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split()
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(each, 16) for each in addresses.split("-"))
            start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if start < end:
                _MADVISE(start, end - start, _MADV_COLLAPSE)
    _resident = _resident_now()


def _resident_now() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
