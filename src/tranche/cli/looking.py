"""One look at the machine for a command that only shows it, with words on stderr about what the picture does not show."""

from __future__ import annotations

from tranche.cli.output import warn
from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.node.host import Host
from tranche.node.locks.deciding import slow_decision
from tranche.node.state.session import StateFolder


def look_at(host: Host) -> NodeView:
    """The machine as it is now. What dead processes left is cleared, where that is possible now."""
    view = host.look(unsettled)
    warn_of_slow_decision(host.places)
    return view


def unsettled(error: TrancheError) -> None:
    """Say that what dead processes left is still there, and why."""
    warn(f"what dead processes left is shown as it is, and could not be cleared: {error.message}")


def warn_of_slow_decision(places: StateFolder) -> None:
    """Say who holds everybody up, if somebody does."""
    if (slow := slow_decision(places)) is not None:
        warn(f"{slow}; {slow.hint}")
