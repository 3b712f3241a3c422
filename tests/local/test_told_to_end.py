"""`tranche run` is told to end at any line of its way: it ends with the signal's code, or the command's, and keeps nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.node.machines import Node, node_of
from tests.node.processes import Child, ChildFailed
from tests.support.length import cases
from tranche.core.request import parse_request
from tranche.local.run import RunRequest, run
from tranche.local.run_report import RunReporter
from tranche.local.workload import OwnWorkload
from tranche.node.locks.deciding import WaitLimit
from tranche.node.store import journal, records, register

CASES = cases(24, "TRANCHE_SIGNAL_CASES")
"""At how many lines, about, over all signals; TRANCHE_SIGNAL_CASES asks for more. There are about 900 lines."""

_TRACED = (
    "local/",
    "node/host.py",
    "node/locks/locks.py",
    "node/execution/executor.py",
    "node/locks/deciding.py",
)


@dataclass(slots=True)
class Interrupter:
    """Sends this process the signals before the line of that ordinal runs, and again two lines later."""

    signals: tuple[signal.Signals, ...]
    line: int
    passed: int = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if not any(f"/tranche/{part}" in file for part in _TRACED):
            return None
        # Before the handlers are there the process ends as any other.
        if event == "line" and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            self.passed += 1
            for number, at in zip(self.signals, (self.line, self.line + 2), strict=False):
                if self.passed == at:
                    os.kill(os.getpid(), number)
        return self


def lines_of_a_run(
    node: Node, profile: str, signals: tuple[signal.Signals, ...], line: int
) -> tuple[int, int, list[str]]:
    """The exit code of a run that is interrupted at that line, how many lines it had, and what it has left."""

    def work() -> tuple[int, int, list[str]]:
        interrupter = Interrupter(signals, line)
        with node.host() as host:
            sys.settrace(interrupter)
            try:
                code, _ = run(
                    host,
                    RunRequest(
                        request=parse_request(mig_profile=profile),
                        workload=OwnWorkload(["true"], os.environ),
                        patience=WaitLimit(),
                    ),
                    RunReporter(lambda line: None, lambda line: None),
                )
            finally:
                sys.settrace(None)
            with host.ledger.read() as db:
                left = [
                    *(f"allocation {each.id}, {each.phase}" for each in register.allocations(db)),
                    *(f"waiter {each.id}" for each in records.waiters(db)),
                    *(f"plan {each.id}" for each in journal.running_plans(db)),
                ]
            places = host.places
            left += [f"lock {each.name}" for each in places.allocation("x").parent.iterdir()]
            left += [f"file {each.name}" for each in places.waiter("x").parent.iterdir()]
        return code, interrupter.passed, left

    return Child(work).result()


@pytest.mark.parametrize("told", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)])
def test_a_signal_at_any_line_leaves_nothing(tmp_path: Path, told: tuple[signal.Signals, ...]) -> None:
    node = node_of(tmp_path, "A100-40GB")
    profiles = ("7g.40gb", "1g.5gb")
    _, lines, left = lines_of_a_run(node, profiles[1], (), 0)
    assert left == []
    codes: set[int] = set()
    wrong: list[str] = []
    step = max(1, 3 * lines // CASES)
    for case, line in enumerate(range(told[0] % step, lines, step)):
        try:
            # Each request needs the room of the one before, so that there is a plan to carry out.
            code, _, left = lines_of_a_run(node, profiles[case % 2], told, line)
        except ChildFailed as error:
            wrong.append(f"line {line} of {lines}: {str(error).splitlines()[-1]}")
            continue
        codes.add(code)
        if left or code not in (0, 128 + told[0]):
            wrong.append(f"line {line} of {lines}: exit code {code}, {left}")
    assert not wrong, "\n".join(wrong)
    assert codes >= {128 + told[0]}
