"""A p4d on which several people work: what the pictures of the documents show."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.machines import TestMachine, wait_until

_JOBS = (
    ("train", "--mig-profile", "3g.20gb"),
    ("notebook", "--gpu-memory", "4Gi"),
    ("evaluate", "--gpu-memory", "4Gi"),
    ("serve", "--mig-profile", "2g.10gb"),
    ("finetune", "--gpus", "1"),
)


def set_to_work(machine: TestMachine, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold slices and a GPU, leave a slice idle, and cut a GPU by hand; `programs` is a folder for what runs."""
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for name, *request in _JOBS:
        program = programs / name
        program.write_text("#!/bin/sh\nexec sleep 600\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        before = len(machine.json("ps")["allocations"])
        work = machine.start("run", *request, "-q", "--", name)
        wait_until(lambda before=before: len(machine.json("ps")["allocations"]) > before, work)  # type: ignore[misc]
    machine.tranche("run", "-q", "--mig-profile", "2g.10gb", "--", "true")
    machine.cut_by_hand(5, "14", "14", "19")
    by_hand = machine.json("gpus")["gpus"][5]["slices"][0]["devices"][0]["uuid"]
    machine.machine.inject_busy(by_hand, pid=5004242, name="jupyter")
