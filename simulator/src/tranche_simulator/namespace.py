"""A mount namespace in which the driver's files are those of a simulated machine, for this process and its children.

Nothing outside changes. Root only needs permission to mount; other users also get a user namespace, where the kernel allows one.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from tranche_simulator import driver_files
from tranche_simulator.errors import SimulatorError
from tranche_simulator.machine import SimulatedMachine

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_PROC, _PROC_DRIVER, _BUS = Path("/proc"), Path("/proc/driver"), Path("/sys/bus")
# Everything created lies here, in the namespace's own file system.
_MADE = _PROC_DRIVER / ".tranche-simulator"
_NVIDIA = "0x10de"
_LINKED_PIDS = 65536


def enter(machine: SimulatedMachine) -> None:
    """Move this process into such a namespace. It must have no other thread.

    Raises:
        SimulatorError: the kernel allows no namespace or no mount here, or has no /proc/driver.
    """
    _unshare()
    _mount("none", Path("/"), flags=_MS_REC | _MS_SLAVE)
    capabilities = machine.capability_files()
    if not _PROC_DRIVER.is_dir():
        raise SimulatorError("this kernel has no /proc/driver folder for the driver's files")
    _lay_over(_PROC_DRIVER, own=True)
    gpus = machine.gpus()
    for name, text in driver_files.proc_driver(machine.driver, gpus).items():
        _write(_PROC_DRIVER / name, text.encode())
    _bind(capabilities, _make_folder(_PROC_DRIVER / "nvidia" / "capabilities"))
    _show_pci(machine)
    _show_in_proc("devices", driver_files.proc_devices)
    _show_in_proc("modules", driver_files.proc_modules)


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    libc = _libc()
    if libc.unshare(_CLONE_NEWNS) == 0:
        return
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER) != 0:
        raise SimulatorError(
            f"cannot create a mount namespace: {os.strerror(ctypes.get_errno())}",
            hint="run as root, or allow user namespaces (sysctl user.max_user_namespaces)",
        )
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _show_pci(machine: SimulatedMachine) -> None:
    """Show the machine's GPUs on the PCI bus, in place of the host's own, and the driver that they are bound to."""
    devices, drivers = _BUS / "pci" / "devices", _BUS / "pci" / "drivers"
    if devices.is_dir() and drivers.is_dir():
        _lay_over(devices, keep=lambda path: _read(path / "vendor").strip() != _NVIDIA)
        _lay_over(drivers, keep=lambda path: path.name != "nvidia")
    else:  # a machine without PCI
        _lay_over(_BUS, keep=lambda path: path.name != "pci")
    _make_folder(drivers / "nvidia")
    for gpu in machine.gpus():
        folder = _make_folder(devices / driver_files.sysfs_address(gpu.bus_id))
        for name, content in driver_files.pci_device(gpu).items():
            _write(folder / name, content)
        (folder / "driver").symlink_to("../../drivers/nvidia")


def _show_in_proc(name: str, text: Callable[[str], str]) -> None:
    """Show a changed file of /proc. For a file that this kernel lacks, a whole folder must cover /proc."""
    place = _PROC / name
    made = _MADE / name
    _write(made, text(_read(place)).encode())
    if not place.exists():
        _replace_proc()
    if not place.exists():
        place.write_bytes(made.read_bytes())
    else:
        _bind(made, place)


def _replace_proc() -> None:
    """Put a folder over /proc whose entries lead to the real one. Unlike the real one, it accepts new files.

    A kernel without loadable modules has no /proc/modules, where NVIDIA's tools look for the driver.
    """
    pids = range(1, min(int(_read(_PROC / "sys/kernel/pid_max") or 0), _LINKED_PIDS) + 1)
    names = {entry.name for entry in _PROC.iterdir()} | {str(pid) for pid in pids}
    stage = _make_folder(_MADE / "proc")
    _bind(_PROC, _make_folder(stage / ".host"), recursive=True)
    for name in names:
        (stage / name).symlink_to(f".host/{name}")
    _bind(stage, _PROC, recursive=True)


def _lay_over(folder: Path, *, own: bool = False, keep: Callable[[Path], bool] = lambda _: True) -> None:
    """Cover one of the kernel's folders with a writable one. Entries that `keep` chooses stay visible.

    With `own` it is a separate file system, else a part of the one that was made first.
    """
    beneath = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    kept = [path for path in folder.iterdir() if keep(path)]
    links = {path.name: os.readlink(path) for path in kept if path.is_symlink()}
    folders = {path.name: path.is_dir() for path in kept if not path.is_symlink()}
    if own:
        _mount("tmpfs", folder, kind="tmpfs", data="mode=755")
    else:
        _bind(_make_folder(_MADE / folder.relative_to("/")), folder)
    for name, target in links.items():
        (folder / name).symlink_to(target)
    for name, is_folder in folders.items():
        _make_folder(folder / name) if is_folder else _write(folder / name, b"")
        _bind(Path(f"/proc/self/fd/{beneath}/{name}"), folder / name, recursive=True)
    os.close(beneath)


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, content: bytes) -> None:
    _make_folder(path.parent)
    path.write_bytes(content)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _bind(source: Path, target: Path, *, recursive: bool = False) -> None:
    _mount(str(source), target, flags=_MS_BIND | (_MS_REC if recursive else 0))


def _mount(source: str, target: Path, *, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, str(target), kind, data)]
    if _libc().mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) != 0:
        raise SimulatorError(f"cannot mount over {target}: {os.strerror(ctypes.get_errno())}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
