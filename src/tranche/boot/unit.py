"""systemd units on a machine or in an image: the two files of each, and the unit that cuts at boot.

Its installation ensures that systemd need not break an ordering cycle because of it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tranche.core.errors import PermissionDenied, UsageError
from tranche.core.partition import PARTITION, parse_partition

UNIT = "tranche-boot.service"
SETTINGS_FILE = "/etc/default/mig"
CUT_SECONDS = 120.0
"""How long the cut itself may take, after the wait for the driver."""

_FOLDER = Path("etc/systemd/system")
_WANTS = "multi-user.target.wants"
_MARGIN_SECONDS = 60.0
_TO_QUOTE = frozenset(" \t\"'\\;")


def unit_text(command: tuple[str, ...], *, settings_file: str, seconds: float) -> str:
    """The unit that runs the command; `seconds` is how long the command waits for the driver."""
    template = resources.files(__package__).joinpath(UNIT).read_text()
    values = {
        "@file@": settings_file.replace("%", "%%"),
        "@command@": command_line(command),
        "@seconds@": f"{seconds + CUT_SECONDS + _MARGIN_SECONDS:.0f}",
    }
    for name, value in values.items():
        template = template.replace(name, value)
    return template


@dataclass(frozen=True, slots=True)
class InstalledUnit:
    """A unit's place under `root`: "/" for the machine itself, or the root folder of an image."""

    root: Path
    name: str = UNIT

    @property
    def file(self) -> Path:
        """The unit."""
        return self.root / _FOLDER / self.name

    @property
    def link(self) -> Path:
        """The link that starts it at boot."""
        return self.root / _FOLDER / _WANTS / self.name

    @property
    def installed(self) -> bool:
        """Whether the unit is there."""
        return self.file.is_file()

    @property
    def enabled(self) -> bool:
        """Whether it is started at boot."""
        return self.link.is_symlink()

    def refuse_elsewhere(self) -> None:
        """UsageError if the root does not exist, or its folder of units is a link that leads out of it, to this machine's."""
        if not self.root.is_dir():
            raise UsageError(f"{self.root} is not a folder", hint="give the root of a mounted image")
        folder = self.file.parent.resolve()
        if not folder.is_relative_to(self.root.resolve()):
            raise UsageError(
                f"{self.file.parent} points outside {self.root}, to {folder}",
                hint="run the command in a chroot of the image",
            )

    def install(self, text: str) -> bool:
        """Write and enable it; returns whether anything changed.

        Raises PermissionDenied if writing is not allowed, UsageError if it fails otherwise.
        """
        self.refuse_elsewhere()
        if self.file.is_symlink():
            raise UsageError(
                f"{self.file} is a link to {self.file.readlink()}: the unit is masked or replaced",
                hint=f"run systemctl unmask {self.name}, or remove the link",
            )
        try:
            current = self.file.read_text() if self.installed else None
            if current != text:
                _write(self.file, text)
            if self.enabled and current == text:
                return False
            if not self.enabled:
                self.link.parent.mkdir(parents=True, exist_ok=True)
                self.link.symlink_to(f"../{self.name}")
        except OSError as error:
            raise _refused("write", self.file, error) from error
        return True

    def remove(self) -> bool:
        """Remove it and an empty folder of links; returns whether anything was there. Raises as `install` does."""
        self.refuse_elsewhere()
        try:
            there = self.enabled or self.installed
            self.link.unlink(missing_ok=True)
            self.file.unlink(missing_ok=True)
            if self.link.parent.is_dir() and not any(self.link.parent.iterdir()):
                self.link.parent.rmdir()
        except OSError as error:
            raise _refused("remove", self.file, error) from error
        return there


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.new")
    unfinished.write_text(text)
    unfinished.chmod(0o644)
    unfinished.replace(file)


def _refused(verb: str, path: Path, error: OSError) -> PermissionDenied | UsageError:
    if isinstance(error, PermissionError):
        return PermissionDenied(f"no permission to {verb} {path}", hint="run the command with sudo")
    return UsageError(f"cannot {verb} {path}: {error.strerror}", hint="for an image, give its root with --root DIR")


def command_line(command: tuple[str, ...]) -> str:
    """The command as systemd reads it back from a unit."""
    return " ".join(map(_quoted, command))


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not word or _TO_QUOTE & set(word) else escaped


_CIRCLE = re.compile(rf"(?:ordering cycle|Found dependency).*{re.escape(UNIT)}")
_SECONDS = 60.0
# Where units lie, the folder that counts most last.
_FOLDERS = ("usr/lib/systemd/system", "lib/systemd/system", "run/systemd/system", "etc/systemd/system")
_ORDER = re.compile(r"^(After|Before)\s*=(.*)$", re.MULTILINE)


WAIT_SECONDS = 120.0
"""How long the unit waits for a late driver by default."""
MARK = (
    "# Made by Tranche's agent, which removes it again. If you put your own file in its place, the agent keeps yours.\n"
)


def install_unit(
    root: Path, program: str, *, options: Sequence[str] = (), settings_file: str = SETTINGS_FILE, seconds: float
) -> bool:
    """Write and enable the unit of the machine or image at `root`; returns whether anything changed.

    `program` is the path of tranche on that machine, and `options` precede its command; `seconds` is how long the unit waits for
    the driver. If the unit would close a cycle in the order of units, it is removed and UsageError is raised; otherwise raises as
    `InstalledUnit.install`.
    """
    command = [program, *options, "boot"]
    if settings_file != SETTINGS_FILE:
        command += ["--file", settings_file]
    if seconds != WAIT_SECONDS:
        command += ["--timeout", f"{seconds:g}"]
    unit = InstalledUnit(root)
    changed = unit.install(unit_text(tuple(command), settings_file=settings_file, seconds=seconds))
    if circle := circle_through(root):
        unit.remove()
        raise UsageError(
            f"the unit would create an ordering cycle with other units, so Tranche removed it: {circle}",
            hint="this machine starts the driver after units that use it; see docs/guides/boot.md",
        )
    return changed


@dataclass(frozen=True, slots=True)
class NodeInstallation:
    """The cut at boot as a node's agent installs and removes it.

    `root` is the mount of the node's folders. `partition` is what its /etc/default/mig should select; "" leaves the file alone. A
    file that the agent has not made is the administrator's, and stays.
    """

    root: Path
    program: str
    partition: str
    seconds: float

    def install(self) -> str:
        """Write what is missing or different; returns in words what was done and found. Raises as `install_unit` does."""
        changed = install_unit(self.root, self.program, seconds=self.seconds)
        said = [f"{InstalledUnit(self.root).file} is {'written and enabled' if changed else 'up to date'}"]
        if not self.partition:
            if self._remove_file():
                said.append(f"removed {SETTINGS_FILE}: the settings no longer specify a partition")
        elif self._foreign():
            said.append(f"kept {SETTINGS_FILE}: the agent did not write it")
        else:
            wanted = "".join(str(parse_partition(self.partition)).split())
            self._write_file(f"{MARK}{PARTITION}={wanted}\n")
            said.append(f"{SETTINGS_FILE} asks for {self.partition}")
        return "; ".join(said)

    def remove(self) -> str:
        """Remove the unit, and the file if the agent made it; returns in words what was removed. Raises PermissionDenied."""
        unit = InstalledUnit(self.root)
        removed = [SETTINGS_FILE] if self._remove_file() else []
        if unit.remove():
            removed.append(str(unit.file))
        return f"removed {' and '.join(removed)}" if removed else "nothing to remove"

    @property
    def _file(self) -> Path:
        return self.root / SETTINGS_FILE.lstrip("/")

    def _foreign(self) -> bool:
        try:
            return not self._file.read_text(errors="replace").startswith(MARK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _read_only("read", self._file, error) from error

    def _write_file(self, text: str) -> None:
        try:
            _write(self._file, text)
        except OSError as error:
            raise _read_only("write", self._file, error) from error

    def _remove_file(self) -> bool:
        """Remove the file that the agent made; returns whether there was one."""
        if not self._file.exists() or self._foreign():
            return False
        try:
            self._file.unlink()
        except OSError as error:
            raise _read_only("remove", self._file, error) from error
        return True


def _read_only(verb: str, path: Path, error: OSError) -> PermissionDenied:
    return PermissionDenied(f"cannot {verb} {path}: {error.strerror}", hint="mount the folder read-write")


def circle_through(root: Path) -> str:
    """An ordering cycle that includes the installed unit, in words; "" if there is none.

    systemd-analyze finds it; without that program, as in a container, the visible unit files are read.
    """
    program = shutil.which("systemd-analyze")
    if program is None:
        return _circle_by_files(root)
    of_image = () if root == Path("/") else (f"--root={root}",)
    try:
        done = subprocess.run(
            [program, "verify", "--man=no", *of_image, "multi-user.target"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return _circle_by_files(root)
    said = done.stdout + done.stderr
    if not _CIRCLE.search(said):
        return ""
    lines = [line.strip() for line in said.splitlines() if "ordering cycle" in line or "Found dependency" in line]
    return "; ".join(dict.fromkeys(lines))


def _circle_by_files(root: Path) -> str:
    later: dict[str, set[str]] = defaultdict(set)
    for name, text in _units(root).items():
        for key, names in _ORDER.findall(text):
            for other in names.split():
                first, second = (other, name) if key == "After" else (name, other)
                later[first].add(second)
    return " before ".join(_way_back(later))


def _way_back(later: Mapping[str, set[str]]) -> list[str]:
    """The unit, what follows it, and so on back to the unit; empty if no path leads back."""
    ways = deque([[UNIT]])
    seen: set[str] = set()
    while ways:
        way = ways.popleft()
        for name in sorted(later.get(way[-1], ())):
            if name == UNIT:
                return [*way, name]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def _units(root: Path) -> dict[str, str]:
    """The text of each unit, its drop-ins included."""
    texts: dict[str, str] = {}
    for folder in _FOLDERS:
        texts |= {path.name: text for path in sorted((root / folder).glob("*.*")) if (text := _text(path))}
    for folder in _FOLDERS:
        for path in sorted((root / folder).glob("*.d/*.conf")):
            name = path.parent.name.removesuffix(".d")
            texts[name] = texts.get(name, "") + "\n" + _text(path)
    return texts | _wanted(root, texts)


def _wanted(root: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Targets ordered after the units that they want, as systemd does by default."""
    added: dict[str, list[str]] = defaultdict(list)
    for folder in _FOLDERS:
        for link in (root / folder).glob("*.target.wants/*"):
            added[link.parent.name.removesuffix(".wants")].append(link.name)
    return {name: f"{texts.get(name, '')}\nAfter={' '.join(units)}\n" for name, units in added.items()}


def _text(path: Path) -> str:
    """The unit's text; "" if it is no unit, or cannot be seen from here."""
    try:
        return path.read_text(errors="replace") if path.is_file() else ""
    except OSError:
        return ""
