"""Architecture's list of the modules that a request passes is the path that it takes."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from tests.machines import TestMachine, machine_in

REPOSITORY = Path(__file__).parents[1]
LOOP = ("tranche.node.execution.step_acts", "tranche.hardware.nvml")


def listed() -> list[str]:
    """The modules that the page lists, in its order."""
    page = (REPOSITORY / "docs/architecture.md").read_text()
    section = page.split("\n## The path of a request\n")[1].split("\n## ")[0]
    return re.findall(r"^\| \d+ \| `(tranche\.[\w.]+)` \|", section, re.MULTILINE)


def path_of(machine: TestMachine, *arguments: str) -> list[str]:
    """The modules that `tranche run` passes on that machine, in order; one that calls the driver twice stands once."""
    file = machine.folder / "path"
    subprocess.run(
        [sys.executable, "-m", "tests.run_path", str(file), "run", *arguments],
        cwd=REPOSITORY,
        env=machine.environment,
        check=True,
        capture_output=True,
    )
    return [module for module, _ in groupby(file.read_text().splitlines())]


def test_a_request_passes_the_modules_that_the_page_lists(tmp_path: Path) -> None:
    with machine_in(tmp_path, machine_type="p4d.24xlarge") as machine:
        path = path_of(machine, "--gpu-memory", "4Gi", "--", "true")
    assert list(dict.fromkeys(path)) == listed()
    assert len(listed()) < 20
    begin = path.index("tranche.node.execution.executor") + 1
    end = len(path) - path[::-1].index(LOOP[-1])
    acts = (f"tranche.node.execution.acts.{act}" for act in ("set_mig_mode", "reset_gpu", "create_instance"))
    assert path[begin:end] == [module for act in acts for module in (LOOP[0], act, LOOP[1])]
    once = path[:begin] + path[end:]
    assert len(once) == len(set(once))
    assert not set(once) & set(path[begin:end])
