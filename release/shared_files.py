"""What a wheel puts into `share/`: completion for three shells, and man pages."""

from __future__ import annotations

from pathlib import Path

from release.manual import pages
from tranche.cli.completion import script
from tranche.cli.main import root

_COMPLETIONS = {
    "bash": "bash-completion/completions/tranche",
    "zsh": "zsh/site-functions/_tranche",
    "fish": "fish/vendor_completions.d/tranche.fish",
}


def write_shared_files(folder: Path, version: str) -> None:
    """Write them into the folder, which stands for `share/`."""
    for shell, name in _COMPLETIONS.items():
        _write(folder / name, script(root, shell))
    for name, text in pages(root, version).items():
        _write(folder / "man" / "man1" / name, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
