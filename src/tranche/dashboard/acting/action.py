"""Something that can be done from a page: the plan that is shown, and the work that follows that plan or does nothing."""

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
"""Is told each step as it begins; from several threads."""


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """What would be done now. `steps` say where and what, `facts` what else a person has to know.

    `refused` says why it cannot be done now. `digest` is another one when anything of the plan is another. `command` does the
    same in a terminal. `ends` names the processes that it ends, "" where it ends none.
    """

    steps: tuple[tuple[str, str], ...]
    facts: tuple[str, ...]
    digest: str
    command: str
    refused: str = ""
    ends: str = ""

    @property
    def possible(self) -> bool:
        """Whether there is something to do, and nothing in the way."""
        return bool(self.steps) and not self.refused


@dataclass(frozen=True, slots=True)
class ActionRef:
    """What tells an action from others: its kind, which is in its page's address, and the field that names what it is done to.

    `title` says what it is, in words, `verb` is on its button. `asks` is what its form asks for besides, in the
    field `reason`; "" for nothing.
    """

    kind: str
    field: str
    value: str
    title: str
    verb: str
    asks: str = ""

    @property
    def name(self) -> str:
        """What no other action is called."""
        return f"{self.kind} {self.value}"

    @property
    def fields(self) -> dict[str, str]:
        """The fields of its form, and of its page's address."""
        return {self.field: self.value}


class DashboardAction(Protocol):
    """One thing to do, such as taking one share back."""

    @property
    def label(self) -> ActionRef:
        """Which one it is."""

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it takes; TrancheError where it cannot be. Asks no driver."""

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Do it by the plan of that digest, and say how it went; StateMoved, and nothing is done, when it takes another one."""


def digest_of(facts: Any) -> str:
    """The digest of a plan, from the facts that it consists of, as JSON data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def refuse_another(confirmed: str, now: str) -> None:
    """StateMoved when the plan is not the one that was confirmed."""
    if confirmed != now:
        raise StateMoved("the machine has changed since the plan was shown, and another plan comes out")
