"""Commands under `tranche run` that compete with pods on the node itself: with the same state folder, and in the same cgroup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cluster.node import Node

from tests.cluster.competition.witness import MARK, Holding, holdings

TRANCHE = str(Path(sys.executable).with_name("tranche"))
_IN_CGROUP = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'
_CLOSED = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-"
COMMANDS = {
    "short": "sleep 1",
    "long": "sleep 100000",
    "outlived": "(setsid sleep 5 &); sleep 0.5",
    "outlived by one without files": f"(setsid sh -c '{_CLOSED}; exec sleep 5' &); sleep 0.5",
}
"""What is run, by kind."""
REQUESTS = (
    "--mig-profile=1g.5gb",
    "--mig-profile=2g.10gb",
    "--mig-profile=3g.20gb",
    "--gpu-memory=4Gi",
    "--gpu=0.5",
    "--gpus=1",
)


@dataclass(slots=True)
class Run:
    """One `tranche run`. `started` is monotonic, in seconds."""

    name: str
    request: str
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    stopped: bool = False
    sent: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether `tranche run` itself has ended."""
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send `tranche run` itself a signal; nothing happens when it has ended."""
        if not self.ended:
            self.process.send_signal(number)
            self.stopped = number == signal.SIGSTOP
            self.sent.append(number.name)

    @property
    def said(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace")


@dataclass(slots=True)
class Runs:
    """All commands of one competition."""

    node: Node
    token: str
    folder: Path
    all: list[Run] = field(default_factory=list)

    def start(self, name: str, kind: str, request: str) -> Run:
        """Start one in the background."""
        command = [TRANCHE, "run", request, "--", "sh", "-c", COMMANDS[kind]]
        log = self.folder / f"{name}.log"
        files = self.node.cgroup.child("system").process_files()
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-c", _IN_CGROUP, "sh", *files, "--", *command],
                env={**self.node.environment(), MARK: f"{self.token}/{name}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        run = Run(name, request, process, log, time.monotonic())
        self.all.append(run)
        return run

    @property
    def living(self) -> list[Run]:
        """Those whose `tranche run` has not ended."""
        return [run for run in self.all if not run.ended]

    def remains(self) -> list[Holding]:
        """Every process of every run that lives, `tranche run` itself included."""
        names = {run.name for run in self.all}
        return [each for each in holdings(self.token) if each.competitor in names]

    def waiting(self) -> list[Run]:
        """Those that have no devices yet, the oldest first; stopped ones do not count."""
        served = {each.competitor for each in self.remains() if each.devices}
        return [run for run in self.living if run.name not in served and not run.stopped]

    def exit_codes(self) -> str:
        """How often each exit code came; below 0 it is the signal that ended `tranche run` itself."""
        codes = Counter(run.process.returncode for run in self.all)
        return ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))

    def end_all(self) -> None:
        """Continue what is stopped, and end everything that ever came of any run."""
        for each in self.remains():
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(each.pid, number)
                except ProcessLookupError:
                    break
        for run in self.all:
            run.process.wait()
