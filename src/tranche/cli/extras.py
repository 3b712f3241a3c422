"""The error for a command whose Python packages come with an extra that was not installed."""

from __future__ import annotations

from importlib.metadata import version

from tranche.core.errors import UsageError


def extra_missing(what: str, extra: str, error: ModuleNotFoundError) -> UsageError:
    """`what` needs a package of that extra. The hint names files: of the names in a public index, none is Tranche's."""
    return UsageError(
        f"{what} needs the Python package '{error.name}', which is not installed",
        hint=f"install the wheels of `make dist` with the extra: ./tranche-{version('tranche')}-py3-none-any.whl[{extra}]",
    )
