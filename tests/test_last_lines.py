"""The last lines of a test run say which tests of a cluster were not run, and why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cluster.preflight import why_not

REPOSITORY = Path(__file__).parents[1]
CASES = """
import pytest

def test_without_a_cluster(): pass

@pytest.mark.cluster
@pytest.mark.parametrize("number", [1, 2, 3])
def test_with_a_cluster(number):
    if number < 3:
        pytest.skip("no cluster can run here: a node needs root")
"""


def last_lines(folder: Path, *options: str) -> list[str]:
    """What a run of the cases ends with, before pytest's own count."""
    cases = folder / "test_cases.py"
    cases.write_text(CASES)
    fixed = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(REPOSITORY / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *fixed, *options, str(cases)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-2:]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_that_are_left_out_are_counted_with_the_way_to_run_them(tmp_path: Path, workers: str) -> None:
    line, _ = last_lines(tmp_path, "-n", workers, "-m", "not cluster")
    reason = why_not()
    assert line == "cluster tests: 3 not run: " + (
        f"no cluster can run here: {reason}" if reason else "run them with `make test-cluster`"
    )


def test_tests_that_skip_themselves_are_counted_with_their_reason(tmp_path: Path) -> None:
    line, _ = last_lines(tmp_path, "-n", "2")
    assert line == "cluster tests: 2 not run: no cluster can run here: a node needs root"


def test_tests_that_were_not_asked_for_are_not_mentioned(tmp_path: Path) -> None:
    assert "cluster tests" not in last_lines(tmp_path, "-n", "0", "-k", "without")[0]
