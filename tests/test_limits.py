"""No test hangs for ever, and none depends on how the tests were started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
HANGS = """
import threading, time

def wait_in_a_thread():
    time.sleep(600)

def test_that_hangs():
    threading.Thread(target=wait_in_a_thread, daemon=True).start()
    time.sleep(600)

def test_after_it():
    pass
"""
HANGS_IN_A_CHILD = """
import time
from tests.node.processes import isolated

def wait_in_the_child():
    time.sleep(600)

@isolated
def test_that_hangs():
    wait_in_the_child()
"""
CANNOT_BE_INTERRUPTED = """
import signal, time

def test_that_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(600)
"""
HEEDS = """
import os, signal, subprocess

def test_that_a_child_heeds_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        done = subprocess.run(["sh", "-c", "kill -%d $$; echo ignored" % number], stdout=subprocess.PIPE)
        assert done.returncode == -number
"""


def run_case(folder: Path, text: str, *options: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    """Run a file of tests with this repository's settings, `shell` before it."""
    cases = folder / "test_cases.py"
    cases.write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-c", str(REPOSITORY / "pyproject.toml"), f"--rootdir={folder}", *options, str(cases)]
    return subprocess.run(
        ["sh", "-c", f'{shell} exec "$@"', "sh", *command],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_one_that_hangs_fails_with_all_stacks_and_the_others_go_on(tmp_path: Path) -> None:
    done = run_case(tmp_path, HANGS, "-o", "timeout=1")

    assert "1 failed, 1 passed" in done.stdout
    assert "in wait_in_a_thread" in done.stdout
    assert "def test_that_hangs():" in done.stdout


def test_the_stacks_of_a_forked_child_are_shown(tmp_path: Path) -> None:
    done = run_case(tmp_path, HANGS_IN_A_CHILD, "-o", "timeout=1")

    assert "1 failed" in done.stdout
    assert "in wait_in_the_child" in done.stderr


def test_one_that_cannot_be_interrupted_ends_its_process(tmp_path: Path) -> None:
    done = run_case(tmp_path, CANNOT_BE_INTERRUPTED, "-o", "timeout=0.5", "-o", "faulthandler_timeout=2")

    assert done.returncode == 1
    assert "in test_that_hangs" in done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_started_in_the_background_of_a_script_heed_signals(tmp_path: Path, workers: str) -> None:
    done = run_case(tmp_path, HEEDS, "-n", workers, shell="trap '' INT TERM HUP QUIT USR1;")

    assert done.returncode == 0, done.stdout
