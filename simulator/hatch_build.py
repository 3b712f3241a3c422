"""Puts a compiled simulator into the wheel, where whoever builds the wheel has made one; else it is compiled at its first use."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrebuiltSimulator(BuildHookInterface[Any]):
    """Heeds TRANCHE_SIMULATOR_PREBUILT, the folder of a build, and TRANCHE_SIMULATOR_PLATFORM, the wheel's platform tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder and the tag; no Python is linked, so one wheel serves every version of it."""
        folder = os.environ.get("TRANCHE_SIMULATOR_PREBUILT")
        if not folder or version == "editable":
            return
        build_data["force_include"][folder] = "tranche_simulator/prebuilt"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ['TRANCHE_SIMULATOR_PLATFORM']}"
