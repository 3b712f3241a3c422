"""Whether the unit fits into the order of a machine's other units: systemd breaks a circle by leaving out one of its units."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tranche.boot.unit import UNIT

_CIRCLE = re.compile(rf"(?:ordering cycle|Found dependency).*{re.escape(UNIT)}")
_SECONDS = 60.0


def circle_through(root: Path) -> str | None:
    """What systemd says of a circle that the installed unit is part of, "" where there is none; None when nobody can tell."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return None
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
        return None
    said = done.stdout + done.stderr
    if not _CIRCLE.search(said):
        return ""
    lines = [line.strip() for line in said.splitlines() if "ordering cycle" in line or "Found dependency" in line]
    return "; ".join(dict.fromkeys(lines))
