"""The entry points. What a command needs takes a moment to import, and Ctrl-C must end it without a word then as well."""

from __future__ import annotations

import sys


def main(*, name: str = "tranche") -> None:
    """The program `tranche`."""
    try:
        from tranche.cli.main import main as run

        run(name=name)
    except KeyboardInterrupt:
        sys.exit(130)


def kubectl_main() -> None:
    """The program `kubectl-tranche`, which kubectl runs as `kubectl tranche`."""
    main(name="kubectl tranche")
