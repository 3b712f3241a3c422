"""How many nodes may be changing at once: a number, or a part of all nodes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tranche.core.errors import UsageError

EVERY_NODE = 10**9
"""More nodes than there are: all of them may change at once, also those that nobody has counted yet."""

_TEXT = re.compile(r"(\d{1,6})(%?)")


@dataclass(frozen=True, slots=True)
class RolloutLimit:
    """`amount` nodes, or that many percent of all. 0 lets nobody begin."""

    amount: int
    percent: bool = False

    def nodes(self, fleet: int | None) -> int:
        """How many nodes that is among `fleet`; a part is rounded up, as a DaemonSet does. One when the number is not known.

        All of them are EVERY_NODE, whatever the number.
        """
        if not self.percent or self.amount == 0:
            return self.amount
        if self.amount == 100:
            return EVERY_NODE
        return 1 if fleet is None else max(-(-fleet * self.amount // 100), 1)

    def __str__(self) -> str:
        return f"{self.amount}%" if self.percent else str(self.amount)


def parse_budget(text: str) -> RolloutLimit:
    """`3` or `10%`.

    Raises:
        UsageError: it is neither, or more than 100 percent.
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None or (found[2] and int(found[1]) > 100):
        raise UsageError(
            f"'{text}' is no number of nodes", hint="write how many may change at once, such as 3, or 10% of them"
        )
    return RolloutLimit(int(found[1]), bool(found[2]))
