"""Starts the installation, or says which Python it needs. Python 3.6 can read this file."""

import shutil
import sys

if sys.version_info < (3, 11):  # noqa: UP036
    newer = [name for name in ("python3.14", "python3.13", "python3.12", "python3.11") if shutil.which(name)]
    sys.exit(
        "error: Tranche needs Python 3.11 or newer, and this is Python {}.{}\n  hint: {}".format(
            *sys.version_info[:2],
            f"run: {newer[0]} {sys.argv[0]}" if newer else "install a newer Python, and run this file with it",
        )
    )

from release.installer.install import main

main()
