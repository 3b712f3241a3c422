"""Records decisions as they are made: one JSON document per line of a file, for `tranche replay`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError, UsageError
from tranche.planning.decide.allocate import Decision, Waiting
from tranche.planning.decide.queue import WaitingRequest
from tranche.planning.decide.recording import Impossible, Outcome, RecordedDecision, RecordedRequest, decision_to_dict


class DecisionLog:
    """Appends decisions to a file that other processes may append to as well.

    A waiting request is decided again and again; an unchanged decision is not written again. `failed` is called if a decision
    cannot be written; deciding goes on.
    """

    def __init__(self, path: Path, *, failed: Callable[[OSError], None]) -> None:
        try:
            # A pipe without a reader must not keep the command from its share.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise UsageError(f"cannot record decisions in {path}: {error.strerror}") from error
        self._failed = failed
        self._last: Outcome | None = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __call__(
        self,
        view: NodeView,
        waiters: Sequence[WaitingRequest],
        waiter_id: str,
        adopt_foreign_destroy: bool,
        now: float,
        decision: Decision | TrancheError,
    ) -> None:
        """Record the decision about the waiter and its inputs."""
        outcome: Outcome = (
            Impossible(decision.reason, decision.message) if isinstance(decision, TrancheError) else decision
        )
        if isinstance(outcome, Waiting) and outcome == self._last:
            return
        self._last = outcome
        question = RecordedRequest(view, tuple(waiters), waiter_id, adopt_foreign_destroy, now)
        line = json.dumps(decision_to_dict(RecordedDecision(now, question, outcome))) + "\n"
        try:
            os.write(self._descriptor, line.encode())
        except OSError as error:
            self._failed(error)
