"""What the image is made of: the files of the checkout that .dockerignore lets in, under one digest."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NEVER = ("__pycache__",)


def version(root: Path = ROOT) -> str:
    """The version of what the image holds."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def sources(root: Path = ROOT) -> list[Path]:
    """The same as files and folders, as .dockerignore names them."""
    lines = (root / ".dockerignore").read_text().splitlines()
    admitted = [root / line.removeprefix("!") for line in lines if line.startswith("!")]
    return [root / "Dockerfile", root / ".dockerignore", *admitted]


def source_files(root: Path = ROOT) -> list[Path]:
    """Dockerfile, .dockerignore, and every file that a build may copy, in order."""
    files: list[Path] = []
    for path in sources(root):
        files += [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    return sorted(file for file in files if not _left_out(file.relative_to(root)))


def digest(root: Path = ROOT, *also: str) -> str:
    """One digest of all of them, by path, content and whether they can be executed; and of what else decides on the image."""
    total = hashlib.sha256()
    for file in source_files(root):
        content = file.read_bytes()
        mode = "x" if file.stat().st_mode & 0o111 else "-"
        total.update(f"{file.relative_to(root)} {mode} {len(content)}\n".encode() + content)
    for word in also:
        total.update(f"{word}\n".encode())
    return total.hexdigest()[:16]


def _left_out(path: Path) -> bool:
    return path.suffix == ".pyc" or any(part in _NEVER for part in path.parts)
