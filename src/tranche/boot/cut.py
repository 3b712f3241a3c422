"""The cut at boot: wait for the driver, decide as for any declared layout, carry it out, look again, within a deadline.

It records an event in the machine's ledger, which the node's agent also reads, and reports its progress in the line that
`systemctl status` shows. At the deadline a signal interrupts the main thread, whatever the driver does. A signal cannot interrupt
a hanging call of the driver. In that case the thread that listens to the signals ends the process.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tranche.core.allocation import NodeView
from tranche.core.errors import DriverNotFound, HardwareError, TrancheError, VerificationFailed
from tranche.core.events import Event
from tranche.core.layout import LayoutFile
from tranche.core.partition import PartitionSpec
from tranche.core.state import NodeState
from tranche.node.change import Change
from tranche.node.execution.executor import Progress, no_progress
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.processes.pod_processes import any_pod_runs
from tranche.node.recovery.recovery import boot_time, free_shares_of_earlier_boots, shares_of_earlier_boots
from tranche.node.store import chronicle
from tranche.node.store.ledger import Ledger
from tranche.planning.layouts.named_layouts import boot_layout
from tranche.planning.layouts.present_layout import find_mismatches
from tranche.planning.layouts.reconfigure import LayoutDecision, plan_layout

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0
_HINT = "to see why the driver does not load, run: journalctl -b -k; nvidia-smi"


@dataclass(frozen=True, slots=True)
class CutResult:
    """The decision as carried out, and the machine afterwards."""

    decision: LayoutDecision
    node: NodeState

    @property
    def slices(self) -> int:
        """The number of slices on the machine now."""
        return sum(len(instance.compute_instances) for gpu in self.node for instance in gpu.instances)


@dataclass(frozen=True, slots=True)
class BootCut:
    """One cut at boot.

    `open_host` opens the machine and raises DriverNotFound or HardwareError while its driver is not ready. `has_gpu` says whether
    the machine has an NVIDIA GPU at all, None if unknown. `tell` receives progress, `progress` each step, on several threads.
    `booted` says when the machine was started, `pods_run` whether a pod runs on it, None if that cannot be seen. `clock` is in
    seconds, as is `seconds`, the wait for a driver that is not ready.
    """

    wanted: PartitionSpec | str
    layouts: LayoutFile
    open_host: Callable[[], AbstractContextManager[Host]]
    has_gpu: Callable[[], bool | None]
    seconds: float
    tell: Callable[[str], None] = lambda text: None
    progress: Progress = no_progress
    booted: Callable[[], float | None] = boot_time
    pods_run: Callable[[], bool | None] = any_pod_runs
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def carry_out(self) -> CutResult | None:
        """Cut the GPUs; None if the machine has no NVIDIA GPU.

        Never touches what is in use: it raises GpuBusy and changes nothing. Leaves lost GPUs out, and raises HardwareError after
        cutting the others. Also raises everything that a layout can raise.
        """
        begun, told = self.clock(), ""
        for pause in _pauses():
            with ExitStack() as stack:
                try:
                    host = stack.enter_context(self.open_host())
                    _require_gpus(host.driver.observe())
                except (DriverNotFound, HardwareError) as error:
                    not_ready = error
                else:
                    return self._cut(host)
            if self.has_gpu() is False:
                return None
            left = begun + self.seconds - self.clock()
            if left <= 0:
                message = f"the NVIDIA driver was not ready within {self.seconds:g} s: {not_ready.message}"
                raise type(not_ready)(message, hint=_HINT) from not_ready
            if not_ready.message != told:
                self.tell(f"waiting for the NVIDIA driver: {not_ready.message}")
            told = not_ready.message
            self.sleep(min(pause, left))
        raise AssertionError("pauses have no end")

    def _cut(self, host: Host) -> CutResult:
        def decide(view: NodeView) -> LayoutDecision:
            return plan_layout(view, boot_layout(self.wanted, self.layouts, view.node))

        self._free_shares_of_pods(host.ledger)
        self.tell(f"partitioning the GPUs for {self.wanted}")
        decision = Change(host, HookRunner(), WaitLimit(wait=False), progress=self.progress).to_layout(decide)
        node = host.driver.observe()
        self._verify(node)
        decision.refuse_if_lost()
        return CutResult(decision, node)

    def _free_shares_of_pods(self, ledger: Ledger) -> None:
        """Free what pods held before the machine was restarted, unless one may still run."""
        booted, pods_run = self.booted(), self.pods_run()
        if pods_run is None:
            if kept := shares_of_earlier_boots(ledger, booted):
                self.tell(
                    f"kept {kept} {'share' if kept == 1 else 'shares'} held by pods: this process has its own PID namespace, "
                    "so it cannot see whether the pods are running"
                )
            return
        freed = free_shares_of_earlier_boots(ledger, booted=booted, pods_run=pods_run, now=time.time())
        if freed:
            self.tell(f"released the shares that {freed} {'pod' if freed == 1 else 'pods'} held before the restart")

    def _verify(self, node: NodeState) -> None:
        """Compare the machine itself with the layout: a decision counts a promised but missing slice as present."""
        layout = boot_layout(self.wanted, self.layouts, node)
        if wrong := [each for each in find_mismatches(node, layout) if not each.gpu.lost]:
            raise VerificationFailed(
                f"{self.wanted}: {'; '.join(map(str, wrong))}", hint="list the shares with: tranche ps"
            )


def _require_gpus(node: NodeState) -> None:
    if not node.gpus:
        raise DriverNotFound("the NVIDIA driver reports no GPUs")


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def record_outcome(ledger: Path, *, time: float, boot_id: str, asked: str, error: TrancheError | None) -> None:
    """Record how the cut ended; `time` is in seconds since the epoch. Works without a driver. Raises LedgerUnavailable."""
    with closing(Ledger(ledger)) as opened, opened.write() as db:
        chronicle.boot_ended(db, time, boot_id, asked, error)


def read_outcome(ledger: Path, boot_id: str) -> Event | None:
    """How the cut ended at that start of the machine; None if there is no record."""
    if not ledger.exists():
        return None
    with closing(Ledger(ledger, read_only=True)) as opened, opened.read() as db:
        return chronicle.last_boot(db, boot_id)


_MOST_BYTES = 1000


def say_status(text: str, environ: Mapping[str, str], *, patience: float = 0.0) -> None:
    """Show the text as the service's status; does nothing outside a service that may notify.

    A busy service manager accepts only a few messages: this one is dropped after `patience` seconds.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    line = " ".join(text.split())
    message = b"STATUS=" + line.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore").encode()
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.settimeout(patience)
        client.sendto(message, "\0" + address[1:] if address.startswith("@") else address)


_AGAIN_SECONDS = 20.0  # for undoing what was begun
_HEARD_SECONDS = 5.0
_POLL_SECONDS = 0.05
_AT_ONCE_SECONDS = 1.0  # signals that come together are heard as one


class CutInterrupted(BaseException):
    """The time is over, or the service manager asks to end. It is no error of the work, so no handler may treat it as one.

    What was begun is undone if time allows, else by the next command.
    """


@contextmanager
def ending_after(seconds: float, leave: Callable[[str], None], *, patience: float = _HEARD_SECONDS) -> Iterator[None]:
    """Raise CutInterrupted in the block once the time is over, and at SIGTERM; only in the process's main thread.

    If that thread hangs in a call and has not heard the signal after `patience` seconds, another thread calls `leave` with the
    reason. `leave` must end the process.
    """
    heard = [float("-inf")]  # when, by the monotonic clock

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard[0] = time.monotonic()
        raise CutInterrupted(_reason(number, seconds))

    def listen(pipe: int) -> None:
        with open(pipe, "rb", buffering=0) as signals:
            while number := signals.read(1):
                if number[0] in before and not _is_heard(heard, patience):
                    leave(_reason(number[0], seconds))
                    return

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGALRM, signal.SIGTERM)}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=listen, args=(reader,), name="deadline", daemon=True).start()
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)
        for number, handler in before.items():
            signal.signal(number, handler)


def _reason(number: int, seconds: float) -> str:
    if number == signal.SIGTERM:
        return "it received SIGTERM"
    return f"it did not finish within {seconds:g} s: the driver does not answer, or is too slow"


def _is_heard(heard: list[float], patience: float) -> bool:
    begun = time.monotonic()
    while heard[0] < begun - _AT_ONCE_SECONDS:
        if time.monotonic() > begun + patience:
            return False
        time.sleep(_POLL_SECONDS)
    return True
