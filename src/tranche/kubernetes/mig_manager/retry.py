"""The record of a failed attempt: an annotation, so that a restarted manager waits as long as the one before. Pure.

A moment is written so that a restarted manager can still use it: seconds of the machine's monotonic clock, and which boot they
belong to.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tranche.core.json_text import read_json


@dataclass(frozen=True, slots=True)
class Moment:
    """`seconds` are of a clock that only goes forward, but starts over at each boot of the machine; `boot` names the boot."""

    boot: str
    seconds: float

    def until(self, now: Moment) -> float | None:
        """How many seconds ago it was; None if unknown, because the machine was restarted since."""
        passed = now.seconds - self.seconds
        return passed if self.boot == now.boot and passed >= 0 else None

    def __str__(self) -> str:
        return f"{self.seconds:.3f}@{self.boot}"


def parse_moment(text: str) -> Moment:
    """The moment that `str` wrote; for any other text an unknown moment."""
    seconds, _, boot = text.partition("@")
    try:
        return Moment(boot, float(seconds))
    except ValueError:
        return Moment(boot, float("inf"))


FIRST_DELAY_SECONDS = 5.0
LONGEST_DELAY_SECONDS = 300.0

ATTEMPT_ANNOTATION = "tranche.dev/mig.config.attempt"
REBOOT_SPENT = "spent"


@dataclass(frozen=True, slots=True)
class RetryState:
    """The last of `failures` failed attempts in a row at one layout.

    `digest` identifies the layout's content, so that an edited layout is tried at once. `at` is when it failed. `reboot` is ""
    without a request for a restart of the machine, the boot id under which it was requested, or REBOOT_SPENT when the restart has
    not helped. `restart_failed` says that the restart itself failed.
    """

    digest: str
    failures: int
    at: Moment
    reason: str
    message: str
    reboot: str = ""
    restart_failed: bool = False

    def wait(self, now: Moment) -> float:
        """In how many seconds to try again, 0 for at once.

        5 seconds after the first failure, then twice as long each time, at most five minutes; at once when the machine was
        restarted since.
        """
        passed = self.at.until(now)
        if passed is None:
            return 0.0
        return max(min(FIRST_DELAY_SECONDS * 2.0 ** min(self.failures - 1, 16), LONGEST_DELAY_SECONDS) - passed, 0.0)

    def asked_reboot(self, boot_id: str) -> bool:
        """Whether a restart was requested that has not happened yet."""
        return self.reboot == boot_id != ""

    def rebooted(self, boot_id: str) -> bool:
        """Whether the machine was restarted for this attempt and nothing was tried since."""
        return self.reboot not in ("", REBOOT_SPENT, boot_id)


def attempt_text(attempt: RetryState) -> str:
    """The annotation's value."""
    return json.dumps(asdict(attempt), separators=(",", ":"))


def parse_attempt(text: str | None) -> RetryState | None:
    """The attempt that attempt_text wrote; None for any other text, which means no record and a try at once."""
    if text is None:
        return None
    try:
        data = read_json(text)
        return RetryState(
            digest=str(data["digest"]),
            failures=max(int(data["failures"]), 1),
            at=Moment(str(data["at"]["boot"]), float(data["at"]["seconds"])),
            reason=str(data["reason"]),
            message=str(data["message"]),
            reboot=str(data["reboot"]),
            restart_failed=bool(data.get("restart_failed")),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
