"""What puts the unit onto a machine, or into an image, and makes sure that systemd does not break a circle for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tranche.boot.order import circle_through
from tranche.boot.unit import SETTINGS_FILE, InstalledUnit, unit_text
from tranche.core.errors import PermissionDenied, UsageError
from tranche.core.partition import PARTITION, parse_partition

WAIT_SECONDS = 120.0
"""How long the unit waits for a driver that is late, where nobody says it."""
MARK = "# Made by Tranche's agent, which removes it again. Put a file of your own in its place, and that one stays.\n"


def install_unit(
    root: Path, program: str, *, options: Sequence[str] = (), settings_file: str = SETTINGS_FILE, seconds: float
) -> bool:
    """Write and enable the unit of the machine or image at `root`; whether anything was changed.

    `program` is where tranche is, as that machine sees it, `options` stand before its command; `seconds` is how long the unit
    waits for the driver. Raises UsageError when the unit would close a circle in the order of the others, and removes it then;
    else as `InstalledUnit.install`.
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
            f"the unit would close a circle in the order of the other units, and is removed again: {circle}",
            hint="this machine starts the driver after what uses it; see docs/guides/boot.md",
        )
    return changed


@dataclass(frozen=True, slots=True)
class NodeInstallation:
    """The cut at boot as a node's agent installs it, and takes it away again.

    `root` is where the folders of the node's machine are mounted. `partition` is what its /etc/default/mig is to ask for; ""
    leaves the file to others. A file that the agent has not made is the node's own word, and stays.
    """

    root: Path
    program: str
    partition: str
    seconds: float

    def install(self) -> str:
        """Write what is not there as it should be; in words what was done, and what was found. Raises as `install_unit` does."""
        changed = install_unit(self.root, self.program, seconds=self.seconds)
        said = [f"{InstalledUnit(self.root).file} is {'written and enabled' if changed else 'as it should be'}"]
        if not self.partition:
            if self._remove_file():
                said.append(f"{SETTINGS_FILE} is removed: nothing says any more what to cut")
        elif self._foreign():
            said.append(f"{SETTINGS_FILE} is the node's own, and stays as it is")
        else:
            wanted = "".join(parse_partition(self.partition).text.split())
            self._write_file(f"{MARK}{PARTITION}={wanted}\n")
            said.append(f"{SETTINGS_FILE} asks for {self.partition}")
        return "; ".join(said)

    def remove(self) -> str:
        """Remove the unit, and the file if the agent made it; in words what was removed. Raises PermissionDenied."""
        unit = InstalledUnit(self.root)
        removed = [SETTINGS_FILE] if self._remove_file() else []
        if unit.remove():
            removed.append(str(unit.file))
        return f"removed {' and '.join(removed)}" if removed else "nothing was there to remove"

    @property
    def _file(self) -> Path:
        return self.root / SETTINGS_FILE.lstrip("/")

    def _foreign(self) -> bool:
        try:
            return not self._file.read_text(errors="replace").startswith(MARK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _refused("read", self._file, error) from error

    def _write_file(self, text: str) -> None:
        unfinished = self._file.with_name(f".{self._file.name}.new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(text)
            unfinished.chmod(0o644)
            unfinished.replace(self._file)
        except OSError as error:
            raise _refused("write", self._file, error) from error

    def _remove_file(self) -> bool:
        """Remove the file that the agent made; whether there was one."""
        if not self._file.exists() or self._foreign():
            return False
        try:
            self._file.unlink()
        except OSError as error:
            raise _refused("remove", self._file, error) from error
        return True


def _refused(verb: str, path: Path, error: OSError) -> PermissionDenied:
    return PermissionDenied(
        f"cannot {verb} {path}: {error.strerror}", hint="mount the folder so that it can be written"
    )
