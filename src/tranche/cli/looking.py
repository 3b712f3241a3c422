"""One look at the machine for a command that only shows it, with notes on stderr about what the picture leaves out."""

from __future__ import annotations

from tranche.cli.output import warn
from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.node.host import Host
from tranche.node.locks.deciding import slow_decision
from tranche.node.state.session import StateFolder


def look_at(host: Host) -> NodeView:
    """The machine as it is now. Clears what dead processes left, if that is possible now."""
    view = host.look(unsettled)
    warn_of_slow_decision(host.places)
    return view


def unsettled(error: TrancheError) -> None:
    """Say that what dead processes left is still there, and why."""
    warn(f"cannot clear what dead processes left, so this list still shows it: {error.message}")


def warn_of_slow_decision(places: StateFolder) -> None:
    """Name the process that holds everyone up, if there is one."""
    if (slow := slow_decision(places)) is not None:
        warn(f"{slow}; {slow.hint}")
