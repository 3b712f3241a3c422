"""The error for a command whose Python packages come with an extra that was not installed."""

from __future__ import annotations

import platform
from importlib.metadata import version

from tranche.core.errors import UsageError


def extra_missing(what: str, extra: str, error: ModuleNotFoundError) -> UsageError:
    """`what` needs a package of that extra. The hint names a file: no name in a public index is Tranche's."""
    return UsageError(
        f"{what} needs the Python package '{error.name}', which is not installed",
        hint="install the wheel with the extra: pip install "
        f"'./tranche_gpu-{version('tranche-gpu')}-py3-none-manylinux_2_17_{platform.machine()}.whl[{extra}]'",
    )
