"""`tranche run` for a user who may not write the machine's register: the service gets the share, this process runs the command.

The command is a child of this process, with its own environment, terminal, directory and limits. It inherits the share's lock, so
the share lasts as long as the command even if the service is killed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tranche.core.errors import ServiceUnavailable
from tranche.local.child import (
    PLAIN,
    Launch,
    OrphanTracker,
    command_text,
    find_command,
    prepare_inheritance,
    reporting_not_executable,
    run_child,
)
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.interrupts import (
    ENDING,
    WaitInterrupted,
    heed_signals,
    ignore_signals,
    interrupt_if_told,
    interruptible,
)
from tranche.node.state.connection import ANSWERS_WITHIN_SECONDS, LONGEST_COMMAND, VERSION, ServiceConnection, error_of


class ServiceClient:
    """One request to the service. `say` receives how it goes on, `warn` what changes the isolation of the share."""

    def __init__(self, connection: ServiceConnection, say: Callable[[str], None], warn: Callable[[str], None]) -> None:
        self._connection = connection
        self._say, self._warn = say, warn
        self._code: int | None = None
        self.preempted = False
        """Whether the command ended because another request needed its share."""

    def run(
        self,
        options: Mapping[str, str],
        command: Sequence[str],
        environment: Mapping[str, str],
        patience: WaitLimit,
        launch: Launch = PLAIN,
        *,
        cdi: bool = False,
    ) -> int:
        """Wait for the share that the `options` of `tranche run` ask for, run the command in it, and return its exit code.

        Raises the service's error, CommandNotFound, or ServiceUnavailable if the service ends before the command starts.
        """
        path = find_command(command[0], environment)
        heed_signals()
        try:
            self._connection.send(
                {
                    "version": VERSION,
                    "method": "run",
                    "parameters": {
                        "request": dict(options),
                        "command": (launch.text or command_text(command))[:LONGEST_COMMAND],
                        "wait": patience.wait,
                        "timeout": patience.seconds,
                        **({"cdi": True} if cdi else {}),  # an older service does not know it
                    },
                }
            )
            with interruptible():
                longest = ANSWERS_WITHIN_SECONDS if patience.seconds is None else max(1.0, patience.seconds)
                self._connection.await_answer(min(ANSWERS_WITHIN_SECONDS, longest))
                granted, files = self._await("granted")
            if granted is None:
                return self._code or 0

            def about_to_start() -> None:
                interrupt_if_told()
                launch.starting(granted["environment"])

            return self._run_in_share(path, command, {**environment, **granted["environment"]}, files, about_to_start)
        except WaitInterrupted as stop:
            # The service leaves the queue, or undoes its plan, as soon as it knows that nothing more comes from here.
            self._connection.close_sending()
            for number in ENDING:
                signal.signal(number, signal.SIG_DFL)
            self._await("")
            return stop.exit_code
        finally:
            ignore_signals()
            self._connection.close()

    def extend(self, allocation_id: str, time: str) -> int:
        """Ask for more time for a command, written as for `tranche extend`; returns the exit code. Raises the service's error."""
        self._connection.send(
            {"version": VERSION, "method": "extend", "parameters": {"allocation": allocation_id, "time": time}}
        )
        self._connection.await_answer(2 * ANSWERS_WITHIN_SECONDS)
        self._await("over")
        self._connection.close()
        return self._code or 0

    def _run_in_share(
        self,
        path: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        files: Sequence[int],
        starting: Callable[[], None],
    ) -> int:
        (lock,) = files
        listener = threading.Thread(target=self._await, args=("",), name="service", daemon=True)

        def started(pid: int) -> None:
            os.close(lock)
            self._connection.send({"started": pid})
            self._await("admitted")
            listener.start()

        OrphanTracker()
        prepare_inheritance(lock)
        with reporting_not_executable(command):
            code = run_child(path, command, environment, started, starting=starting, held_back=True)
        ignore_signals()
        self._connection.send({"ended": code})
        self._connection.close_sending()
        listener.join()
        if self._code is None:
            self._warn("the service ended before it freed the share; the next tranche command frees it")
        return code

    def _await(self, wanted: str) -> tuple[dict[str, Any] | None, list[int]]:
        """Tell what the service sends until a `wanted` message comes, which is returned, or the service says that it is over.

        Raises the service's error, and ServiceUnavailable if the service ends while something is wanted.
        """
        while (received := self._connection.receive()) is not None:
            message, files = received
            match message.get("event"):
                case "note":
                    self._say(str(message["text"]))
                case "warning":
                    self._warn(str(message["text"]))
                case "error":
                    raise error_of(message)
                case "over":
                    self._code, self.preempted = int(message["code"]), message.get("preempted") is True
                    return None, []
                case event if event == wanted:
                    return message, files
                case _:
                    pass  # a later service tells more
        if wanted:
            raise ServiceUnavailable(
                "the service ended before the command started", hint="run the command again, or ask an administrator"
            )
        return None, []
