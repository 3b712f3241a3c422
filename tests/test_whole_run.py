"""A whole run: the last lines say what could not be run here, and why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
CASES = """
import pytest

def test_without_a_cluster(): pass

@pytest.mark.cluster
@pytest.mark.parametrize("number", [1, 2, 3])
def test_with_a_cluster(number, record_property):
    if number < 3:
        pytest.skip("no cluster can run here: a node needs root")
    record_property("figure", "allocatable after 3 s")

@pytest.mark.gpu
def test_with_a_gpu():
    pytest.skip("no driver")
"""


def run_cases(root: Path, *options: str) -> list[str]:
    """The lines that a run of the cases prints, pytest's own count last. They lie where the tests of a cluster do."""
    cases = root / "tests" / "cluster" / "test_cases.py"
    cases.parent.mkdir(parents=True)
    cases.write_text(CASES)
    fixed = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(REPOSITORY / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *fixed, f"--rootdir={root}", "--verbose", *options, str(cases)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_could_not_be_run_is_counted_with_its_file_and_reason(tmp_path: Path, workers: str) -> None:
    *_, figure, cluster, gpu, _ = run_cases(tmp_path, "-n", workers)

    assert figure == "allocatable after 3 s"
    file = "tests/cluster/test_cases.py"
    assert cluster == f"not run, for want of a cluster (no cluster can run here: a node needs root): 2 of {file}"
    assert gpu == f"not run, for want of a GPU (no driver): 1 of {file}"


def test_tests_that_were_not_asked_for_are_not_mentioned(tmp_path: Path) -> None:
    assert not [line for line in run_cases(tmp_path, "-n", "0", "-k", "without") if line.startswith("not run,")]
