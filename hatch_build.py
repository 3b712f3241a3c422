"""Puts what a release adds into wheel and sdist: `share/` with man pages and completions, its revision, a compiled simulator."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ReleaseFiles(BuildHookInterface[Any]):
    """Reads variables: TRANCHE_SHARE is a folder that stands for `share/`, TRANCHE_COMMIT a revision.

    An sdist carries both on to the wheels that are made of it. TRANCHE_SIMULATOR_PREBUILT is the folder of a compiled
    simulator, TRANCHE_SIMULATOR_PLATFORM the platform tag of its wheel. Without them the first use compiles the simulator.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add what there is."""
        if version == "editable":
            return
        share = Path(os.environ.get("TRANCHE_SHARE") or Path(self.root) / "share")
        if share.is_dir() and self.target_name == "wheel":
            build_data["shared_data"][str(share)] = "share"
        elif share.is_dir() and share.parent != Path(self.root):
            build_data["force_include"][str(share)] = "share"
        commit = os.environ.get("TRANCHE_COMMIT")
        if commit:
            self._folder = tempfile.TemporaryDirectory()
            written = Path(self._folder.name) / "commit.txt"
            written.write_text(f"{commit}\n")
            inside = "tranche" if self.target_name == "wheel" else "src/tranche"
            build_data["force_include"][str(written)] = f"{inside}/commit.txt"
        prebuilt = os.environ.get("TRANCHE_SIMULATOR_PREBUILT")
        if prebuilt and self.target_name == "wheel":
            # No Python is linked, so one wheel serves every version of it.
            build_data["force_include"][prebuilt] = "tranche_simulator/prebuilt"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['TRANCHE_SIMULATOR_PLATFORM']}"
