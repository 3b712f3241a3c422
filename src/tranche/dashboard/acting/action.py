"""One thing that a page can do: it shows a plan, then follows that plan or does nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tranche.core.errors import StateMoved
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.node.host import Host
from tranche.node.state.session import StateFolder

Tell = Callable[[str], None]
"""Called with each step as it begins, from several threads."""


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """What would be done now. `steps` say where and what; `facts` are what else the user has to know.

    `refused` says why it cannot be done now. `digest` changes whenever anything in the plan does. `command` does the same in a
    terminal. `ends` names the processes that it ends, "" for none.
    """

    steps: tuple[tuple[str, str], ...]
    facts: tuple[str, ...]
    digest: str
    command: str
    refused: str = ""
    ends: str = ""

    @property
    def possible(self) -> bool:
        """Whether there is something to do and nothing in the way."""
        return bool(self.steps) and not self.refused


@dataclass(frozen=True, slots=True)
class ActionRef:
    """Identifies an action: its kind, which is in its page's address, and the field that names its target.

    `title` says what it does; `verb` is on its button. `asks` is what its form also asks for, in the field `reason`; "" for
    nothing.
    """

    kind: str
    field: str
    value: str
    title: str
    verb: str
    asks: str = ""

    @property
    def name(self) -> str:
        """Unique among actions."""
        return f"{self.kind} {self.value}"

    @property
    def fields(self) -> dict[str, str]:
        """The fields of its form, and of its page's address."""
        return {self.field: self.value}


class DashboardAction(Protocol):
    """One thing to do, such as taking one share back."""

    @property
    def label(self) -> ActionRef:
        """Which action it is."""

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do; TrancheError where it is impossible. Asks no driver."""

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out the plan with that digest and say how it went; StateMoved, with nothing done, when the plan has changed."""


def digest_of(facts: Any) -> str:
    """The digest of a plan, from its facts as JSON data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def refuse_another(confirmed: str, now: str) -> None:
    """Raise StateMoved unless the plan is the confirmed one."""
    if confirmed != now:
        raise StateMoved("the machine has changed since the plan was shown, and another plan comes out")
