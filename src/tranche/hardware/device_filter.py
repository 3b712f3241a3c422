"""Filters that deny processes of a control group the device files of GPUs: eBPF programs of cgroup version 2.

When a process opens a device, the kernel asks the programs on all groups above the process, and opens the device only if all
agree. It asks by the device's numbers, so another file for the same device does not help. A file that is already open stays
usable. A program stays on its group until it is detached or the group is removed; the process that attached it may end.

Source: bpf(2), linux/bpf.h (`BPF_PROG_TYPE_CGROUP_DEVICE`), and the kernel's Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tranche.core.errors import FenceUnavailable

_SYSCALLS: Final = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 5, 8, 9, 13, 15, 16
_CGROUP_DEVICE: Final = 15
_ATTACH_TYPE: Final = 6
_ALLOW_MULTI: Final = 2
_MOST_PROGRAMS: Final = 64
_CHARACTER_DEVICE, _READ_OR_WRITE = 2, 6
_GET_CURRENT_UID_GID: Final = 15
_OURS: Final = "fen"
_TRIES: Final = 10
_NAME_IN_INFO: Final = slice(64, 80)
"""The program's name in `struct bpf_prog_info`."""


class FenceFilter(NamedTuple):
    """Which files of GPUs processes may open, by device numbers.

    No file of the character devices `majors` opens except those in `allowed`, as pairs of major and minor number. All other
    devices open as without the rule. Nothing is denied to the users `exempt`, by the real uid in the first user namespace.
    """

    majors: tuple[int, ...]
    allowed: frozenset[tuple[int, int]]
    exempt: frozenset[int] = frozenset()

    def name(self, owner: str) -> str:
        """The name of the rule's program, which tells it from those of other rules and owners: 15 characters."""
        return f"{_prefix(owner)}{hashlib.sha256(repr(_ordered(self)).encode()).hexdigest()[:6]}"


def attach_filter(folder: Path, rule: FenceFilter, owner: str) -> None:
    """Have the rule enforced in that control group, in place of the owner's earlier rules.

    Raises FenceUnavailable if the kernel does not allow it; an earlier rule then remains.
    """
    name = rule.name(owner)
    try:
        with _open(folder) as group:
            if name not in _programs(group, owner):
                program = _load(rule, name)
                try:
                    _bpf(_PROG_ATTACH, struct.pack("<IIIII", group, program, _ATTACH_TYPE, _ALLOW_MULTI, 0))
                finally:
                    os.close(program)
            _detach(group, owner, keep=name)
    except OSError as error:
        raise _unavailable(folder, error) from error


def detach_filters(folder: Path, owner: str) -> None:
    """Stop enforcing the owner's rules in that group, if it exists; FenceUnavailable if the kernel refuses."""
    try:
        with _open(folder) as group:
            _detach(group, owner, keep="")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unavailable(folder, error) from error


def attached_filters(folder: Path, owner: str | None) -> tuple[str, ...]:
    """The names of the owner's programs on that group, or those of every owner, none if the group does not exist.

    FenceUnavailable if that cannot be seen.
    """
    try:
        with _open(folder) as group:
            return tuple(_programs(group, owner))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unavailable(folder, error) from error


def others_filters(folder: Path, owner: str) -> tuple[str, ...]:
    """The names of the programs on that group that other registers attached; the errors of `attached_filters`."""
    ours = set(attached_filters(folder, owner))
    return tuple(each for each in attached_filters(folder, None) if each not in ours)


def _unavailable(folder: Path, error: OSError) -> FenceUnavailable:
    hint = "the fence needs root, cgroup version 2 and a kernel with CONFIG_CGROUP_BPF"
    if error.errno in (errno.E2BIG, errno.EPERM) and os.geteuid() == 0:
        hint = f"to see which programs others have attached there, run: bpftool cgroup tree {folder}"
    return FenceUnavailable(
        f"the kernel denies a device filter on the control group {folder}: {error.strerror}", hint=hint
    )


def _prefix(owner: str) -> str:
    return f"{_OURS}{hashlib.sha256(os.fsencode(owner)).hexdigest()[:6]}"


def _ordered(rule: FenceFilter) -> tuple[Sequence[object], ...]:
    return rule.majors, sorted(rule.allowed), sorted(rule.exempt)


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _detach(group: int, owner: str, *, keep: str) -> None:
    """Detach the owner's programs but one of the name `keep`."""
    kept = False
    for identifier in _identifiers(group):
        with suppress(FileNotFoundError), _program(identifier) as (program, name):
            if not name.startswith(_prefix(owner)):
                continue
            if name == keep and not kept:
                kept = True
                continue
            _bpf(_PROG_DETACH, struct.pack("<IIII", group, program, _ATTACH_TYPE, 0))


def _programs(group: int, owner: str | None) -> list[str]:
    found = []
    for identifier in _identifiers(group):
        with suppress(FileNotFoundError), _program(identifier) as (_, name):
            if name.startswith(_OURS if owner is None else _prefix(owner)):
                found.append(name)
    return found


def _identifiers(group: int) -> tuple[int, ...]:
    """The ids of all device programs on the group itself."""
    found = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    attributes = struct.pack("<IIIIQI4xQ", group, _ATTACH_TYPE, 0, 0, ctypes.addressof(found), _MOST_PROGRAMS, 0)
    _, answered = _bpf(_PROG_QUERY, attributes)
    return tuple(found[: struct.unpack_from("<I", answered, 24)[0]])


@contextmanager
def _program(identifier: int) -> Iterator[tuple[int, str]]:
    """A descriptor of the program, and its name; FileNotFoundError if it is gone."""
    descriptor, _ = _bpf(_PROG_GET_FD_BY_ID, struct.pack("<III", identifier, 0, 0))
    try:
        info = ctypes.create_string_buffer(232)
        _bpf(_OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", descriptor, len(info), ctypes.addressof(info)))
        yield descriptor, info.raw[_NAME_IN_INFO].rstrip(b"\0").decode(errors="replace")
    finally:
        os.close(descriptor)


def _load(rule: FenceFilter, name: str) -> int:
    instructions, license_ = ctypes.create_string_buffer(_assembled(rule)), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "<IIQQIIQII16s",
        _CGROUP_DEVICE,
        (len(instructions) - 1) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(license_),
        0,
        0,
        0,
        0,
        0,
        name.encode(),
    )
    return _bpf(_PROG_LOAD, attributes)[0]


def _bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """The answer of the system call, and the attributes after it; OSError."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"no support for {platform.machine()}")
    for _ in range(_TRIES):
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        answer = ctypes.CDLL(None, use_errno=True).syscall(number, command, buffer, len(attributes))
        if answer >= 0:
            return answer, buffer.raw
        if ctypes.get_errno() != errno.EAGAIN:  # a signal interrupted the verifier
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_LOAD, _MOVE, _MOVE_NUMBER, _AND, _SHIFT_RIGHT, _CALL, _EXIT = 0x61, 0xBF, 0xB7, 0x54, 0x74, 0x85, 0x95
_JUMP, _JUMP_IF_EQUAL, _JUMP_UNLESS_EQUAL = 0x05, 0x16, 0x56  # the conditional ones compare 32 bits


def _assembled(rule: FenceFilter) -> bytes:
    """The rule as a program. It gets access and type, major and minor number in the three words of its context."""
    lines: list[tuple[int, int, int, str, int]] = []  # operation, destination, source, where to jump, number
    labels: dict[str, int] = {}

    def line(operation: int, to: int = 0, source: int = 0, jump: str = "", number: int = 0) -> None:
        lines.append((operation, to, source, jump, number))

    line(_MOVE, 6, 1)  # a call clobbers registers 1 to 5
    if rule.exempt:
        line(_CALL, number=_GET_CURRENT_UID_GID)
        for uid in sorted(rule.exempt):
            line(_JUMP_IF_EQUAL, 0, jump="allow", number=uid)
    line(_LOAD, 2, 6, "+0")
    line(_LOAD, 3, 6, "+0")
    line(_LOAD, 4, 6, "+4")
    line(_LOAD, 5, 6, "+8")
    line(_AND, 3, number=0xFFFF)
    line(_JUMP_UNLESS_EQUAL, 3, jump="allow", number=_CHARACTER_DEVICE)
    line(_SHIFT_RIGHT, 2, number=16)
    line(_AND, 2, number=_READ_OR_WRITE)
    line(_JUMP_IF_EQUAL, 2, jump="allow", number=0)
    for major in rule.majors:
        line(_JUMP_UNLESS_EQUAL, 4, jump=f"after {major}", number=major)
        for minor in sorted(each for known, each in rule.allowed if known == major):
            line(_JUMP_IF_EQUAL, 5, jump="allow", number=minor)
        line(_JUMP, jump="deny")
        labels[f"after {major}"] = len(lines)
    labels["allow"] = len(lines)
    line(_MOVE_NUMBER, number=1)
    line(_EXIT)
    labels["deny"] = len(lines)
    line(_MOVE_NUMBER, number=0)
    line(_EXIT)

    def packed(place: int, operation: int, to: int, source: int, jump: str, number: int) -> bytes:
        offset = int(jump) if jump.startswith("+") else labels[jump] - place - 1 if jump else 0
        return struct.pack("<BBhI", operation, to | source << 4, offset, number)

    return b"".join(packed(place, *each) for place, each in enumerate(lines))
