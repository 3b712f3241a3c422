"""The interface of the agent's parts: each runs, and says whether it does its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a component does its work; `why` says what is missing, "" when ready."""

    ready: bool
    why: str = ""


class Component(Protocol):
    """A part of the agent that runs for as long as the agent does."""

    @property
    def name(self) -> str:
        """One lower-case word or two with a hyphen; logs and /readyz use it."""
        ...

    async def run(self) -> None:
        """Work until cancelled. After any other end it is started again after a pause, so it must start from nothing."""
        ...

    def ready(self) -> Readiness:
        """Its present readiness; a component on which nothing depends need not say more. Called often, must not block."""
        return Readiness(True)
