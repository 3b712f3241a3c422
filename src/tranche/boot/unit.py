"""systemd units on a machine or in an image: the two files of each, and the text of the unit that cuts at boot."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tranche.core.errors import PermissionDenied, UsageError

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
            raise UsageError(f"{self.root} is not a folder", hint="name the root of a mounted image")
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
                hint=f"systemctl unmask {self.name}, or remove the link",
            )
        try:
            current = self.file.read_text() if self.installed else None
            if current != text:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                unfinished = self.file.with_name(f".{self.name}.new")
                unfinished.write_text(text)
                unfinished.chmod(0o644)
                unfinished.replace(self.file)
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


def _refused(verb: str, path: Path, error: OSError) -> PermissionDenied | UsageError:
    if isinstance(error, PermissionError):
        return PermissionDenied(f"no permission to {verb} {path}", hint="run the command with sudo")
    return UsageError(f"cannot {verb} {path}: {error.strerror}", hint="for an image, name its root with --root DIR")


def command_line(command: tuple[str, ...]) -> str:
    """The command as systemd reads it back from a unit."""
    return " ".join(map(_quoted, command))


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not word or _TO_QUOTE & set(word) else escaped
