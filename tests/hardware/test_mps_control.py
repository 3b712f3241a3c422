"""What is said to an MPS daemon and what is made of its answers; the program here prints what it was told to print."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machines import wait_until
from tranche.core.errors import MpsFailed, MpsPathTooLong
from tranche.hardware.mps_control import MpsControlClient, ServerStatus
from tranche.hardware.mps_process import MpsProcess, clean_environment

GIB = 2**30
ANSWERING = """#!/bin/sh
read -r command
echo "$command" >> "$CUDA_MPS_PIPE_DIRECTORY/said"
while IFS='|' read -r asked code answer; do
    if [ "$asked" = "$command" ]; then printf '%b' "$answer"; exit "$code"; fi
done < "$CUDA_MPS_PIPE_DIRECTORY/answers"
"""

Answering = Callable[..., MpsControlClient]


@pytest.fixture
def answering(tmp_path: Path) -> Answering:
    """Makes a program that answers these lines: the command, the exit code and the text, apart by bars."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(ANSWERING)
    program.chmod(0o755)

    def make(*lines: str) -> MpsControlClient:
        pipes = tmp_path / "pipes"
        pipes.mkdir()
        (pipes / "answers").write_text("".join(f"{line}\n" for line in lines))
        return MpsControlClient(pipes, {"PATH": f"{program.parent}:/usr/bin:/bin"})

    return make


def said(control: MpsControlClient) -> list[str]:
    return (control.pipes / "said").read_text().splitlines()


def test_lists_are_read(answering: Answering) -> None:
    control = answering(
        r"get_server_list|0|7000  8000\n", r"get_server_status 7000|0| FAULT\n", r"get_client_list 7000|0|12\n13\n"
    )
    assert control.servers() == (7000, 8000)
    assert control.server_status(7000) is ServerStatus.FAULT
    assert control.clients(7000) == (12, 13)
    assert control.clients(8000) == ()


def test_a_limit_is_believed_only_when_the_answer_follows_it(answering: Answering) -> None:
    dev = "default_device_pinned_mem_limit"
    # The answer never changes, as where the driver ignores the command and another limit of that size was there.
    control = answering(f"get_{dev} 0|0|3G\\n")
    with pytest.raises(MpsFailed, match="was set to 4096M, but the daemon reports 3G") as caught:
        control.limit_memory(3 * GIB)
    assert caught.value.hint
    assert said(control) == [f"set_{dev} 0 4096M", f"get_{dev} 0"]


def test_a_driver_without_limits_is_refused(answering: Answering) -> None:
    with pytest.raises(MpsFailed, match="but the daemon reports nothing"):
        answering().limit_memory(3 * GIB)


@pytest.mark.parametrize(("line", "expected"), [("0|0", True), ("0|CUDA_ERROR_INVALID_VALUE", False), ("1|0", False)])
def test_a_client_is_terminated_when_the_daemon_says_so(answering: Answering, line: str, expected: bool) -> None:
    assert answering(f"terminate_client 7000 12|{line}").terminate_client(7000, 12, seconds=60) is expected


def test_without_a_daemon_the_answer_is_an_error(answering: Answering) -> None:
    control = answering(r"get_server_list|1|Cannot find MPS control daemon process\n")
    with pytest.raises(MpsFailed, match="Cannot find MPS control daemon process"):
        control.servers()


def test_without_the_program_the_error_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(MpsFailed, match="not on the PATH") as caught:
        MpsControlClient(tmp_path, {"PATH": str(tmp_path)}).servers()
    assert "driver" in caught.value.hint


# The process


def await_program(pid: int) -> None:
    """Return when the kernel shows what the process runs: it reports the start a moment before it has put the words in place."""
    wait_until(lambda: Path(f"/proc/{pid}/environ").read_bytes() != b"")


@contextmanager
def running(folder: Path, pipes: Path, name: str = "nvidia-cuda-mps-control") -> Iterator[int]:
    """A process of that name that was started with that pipe folder."""
    program = folder / name
    shutil.copy(shutil.which("sleep") or "", program)
    process = subprocess.Popen([program, "600"], env={"CUDA_MPS_PIPE_DIRECTORY": str(pipes)})
    try:
        await_program(process.pid)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_daemon_is_known_by_its_process_and_not_by_its_files(tmp_path: Path) -> None:
    daemon = MpsProcess(tmp_path / "pipes", {})
    assert daemon.find() is None
    daemon.pipes.mkdir()
    with running(tmp_path, daemon.pipes) as pid:
        (daemon.pipes / "nvidia-cuda-mps-control.pid").write_text(f"{pid}\n")
        found = daemon.find()
        assert found is not None
        assert (found.pid, found.uid, found.lives) == (pid, os.getuid(), True)
    assert daemon.find() is None
    assert not found.lives


@pytest.mark.parametrize(("name", "pipes"), [("nvidia-cuda-mps-control", "elsewhere"), ("impostor", "pipes")])
def test_another_process_of_that_number_is_no_daemon(tmp_path: Path, name: str, pipes: str) -> None:
    daemon = MpsProcess(tmp_path / "pipes", {})
    daemon.pipes.mkdir()
    with running(tmp_path, tmp_path / pipes, name) as pid:
        (daemon.pipes / "nvidia-cuda-mps-control.pid").write_text(str(pid))
        assert daemon.find() is None


@contextmanager
def starting(pipes: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is called as a daemon of that folder is started, and does nothing but wait."""
    command = ["/opt/nvidia-cuda-mps-control", "-c", "read -r line", "-d"]
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    process = subprocess.Popen(command, executable="/bin/bash", env=environment, stdin=subprocess.PIPE)
    try:
        await_program(process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_daemon_without_a_pid_file_is_found_and_ended(tmp_path: Path) -> None:
    daemon = MpsProcess(tmp_path / "pipes", {"PATH": "/nowhere"})
    with starting(daemon.pipes) as process, starting(tmp_path / "elsewhere") as other:
        found = daemon.find()
        assert found is not None
        assert found.pid == process.pid
        daemon.stop()
        assert process.wait() == -signal.SIGKILL
        assert other.poll() is None
        assert daemon.find() is None


def test_the_program_that_passes_on_a_command_is_no_daemon(tmp_path: Path) -> None:
    daemon = MpsProcess(tmp_path / "pipes", {"PATH": "/nowhere"})
    with running(tmp_path, daemon.pipes) as pid:
        assert daemon.find() is None
        daemon.stop()
        assert Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_path_that_no_socket_can_have_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    daemon = MpsProcess(tmp_path / ("x" * 100), {})
    with pytest.raises(MpsPathTooLong, match="107") as caught:
        daemon.start("GPU-0")
    assert "--state-dir" in caught.value.hint
    assert not daemon.pipes.exists()


def test_a_daemon_gets_nothing_of_the_share_or_daemon_that_the_caller_is_in() -> None:
    environment = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
        "TRANCHE_ALLOCATION": "1a2b",
        "TRANCHE_SIM_STATE": "/s",
    }
    assert clean_environment(environment) == {"PATH": "/bin", "TRANCHE_SIM_STATE": "/s"}
