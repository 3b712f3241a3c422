"""Whether the unit fits into the order of a machine's other units: systemd breaks a circle by leaving out one of its units."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path

from tranche.boot.unit import UNIT

_CIRCLE = re.compile(rf"(?:ordering cycle|Found dependency).*{re.escape(UNIT)}")
_SECONDS = 60.0
# Where units lie, the folder that counts most last.
_FOLDERS = ("usr/lib/systemd/system", "lib/systemd/system", "run/systemd/system", "etc/systemd/system")
_ORDER = re.compile(r"^(After|Before)\s*=(.*)$", re.MULTILINE)


def circle_through(root: Path) -> str:
    """A circle that the installed unit is part of, in words; "" where there is none.

    systemd-analyze knows; where there is none, as in a container, the unit files are read as far as they can be seen.
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
    """The unit, what follows it, and so on to the unit again; empty where no way leads back."""
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
    """Targets that start after the units which they want, as they do by themselves."""
    added: dict[str, list[str]] = defaultdict(list)
    for folder in _FOLDERS:
        for link in (root / folder).glob("*.target.wants/*"):
            added[link.parent.name.removesuffix(".wants")].append(link.name)
    return {name: f"{texts.get(name, '')}\nAfter={' '.join(units)}\n" for name, units in added.items()}


def _text(path: Path) -> str:
    """The unit's text; "" of what is no unit, or cannot be seen from here."""
    try:
        return path.read_text(errors="replace") if path.is_file() else ""
    except OSError:
        return ""
