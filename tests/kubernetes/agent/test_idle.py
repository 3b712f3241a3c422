"""An agent on a machine without a GPU."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import urllib.request
from pathlib import Path

from tranche.kubernetes.agent.idle import idle_until_gpu, machine_has_gpu


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def readiness(port: int) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
        body: dict[str, object] = json.load(answer)
        return body


def test_it_is_ready_says_why_and_ends_when_it_is_told_to() -> None:
    port, said = free_port(), list[dict[str, object]]()

    def ask_then_end() -> None:
        while not said:
            try:
                said.append(readiness(port))
            except OSError:
                continue
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask_then_end)
    asking.start()
    assert not idle_until_gpu("127.0.0.1", port, lambda: False)
    asking.join()
    assert said == [{"ready": True, "components": {"gpus": "this machine has no GPU"}}]


def test_it_goes_on_when_a_gpu_comes() -> None:
    looks = iter([False, False, False, True])
    assert idle_until_gpu("127.0.0.1", free_port(), lambda: next(looks), period=0.001)
    assert list(looks) == []


def test_a_machine_with_a_gpu_does_not_idle() -> None:
    assert idle_until_gpu("no address", -1, lambda: True)


def test_a_simulated_machine_has_gpus_where_its_state_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert not machine_has_gpu({"TRANCHE_SIM_STATE": str(state)})
    state.touch()
    assert machine_has_gpu({"TRANCHE_SIM_STATE": str(state)})
