"""Forty mixed requests on one p4d.24xlarge: each is served as `tranche explain` foretold, and none below its fence."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.local.test_fractions import end_daemons
from tests.machines import TestMachine, machine_in, wait_until
from tranche.core.request import Isolation

_PLACED = 32
_FEW_FIRST: tuple[tuple[str, ...], ...] = (
    *(("--gpu-memory", "4Gi"),) * 4,
    *(("--gpu-memory", "1Gi"),) * 5,
    *(("--gpu-memory", "3Gi", "--isolation", "any"),) * 3,
    *(("--gpu-memory", "2Gi", "--isolation", "none"),) * 3,
    *(("--gpu-memory", "4Gi", "--isolation", "hard"),) * 3,
    *(("--mig-profile", "2g.10gb"),) * 2,
    *(("--mig-profile", "1g.10gb", "--isolation", "hard"),) * 2,
    *(("--gpu", "0.1", "--compute", "20"),) * 3,
    *(("--gpu", "0.5"),) * 2,
    ("--gpu", "0.25", "--count", "2"),
    *(("--gpu-memory", "12Gi"),) * 2,
    *(("--gpus", "1"),) * 2,
)
"""In an order of their own they leave room for one another."""

_THEN: tuple[tuple[str, ...], ...] = (
    ("--gpus", "4"),
    ("--gpu-memory", "4Gi"),
    ("--gpus", "2", "--isolation", "hard"),
    ("--gpu-memory", "30Gi"),
    ("--mig-profile", "7g.40gb"),
    ("--gpu-memory", "1Gi", "--isolation", "any"),
    ("--gpu", "0.2", "--compute", "50"),
    ("--mig-profile", "3g.20gb"),
)
"""The first of them has no place, and the others wait behind it, in order."""

_STRENGTH = {Isolation.HARD: 2, Isolation.SOFT: 1, Isolation.NONE: 0, Isolation.ANY: 0}


@pytest.fixture
def p4d() -> Iterator[TestMachine]:
    with (
        tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as name,
        machine_in(Path(name), machine_type="p4d.24xlarge") as machine,
    ):
        try:
            yield machine
        finally:
            machine.end()
            end_daemons(machine)


def least(request: tuple[str, ...]) -> Isolation:
    return Isolation(request[request.index("--isolation") + 1]) if "--isolation" in request else Isolation.SOFT


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_forty_mixed_requests_are_served_as_foretold(p4d: TestMachine) -> None:
    first = list(_FEW_FIRST)
    Random(3).shuffle(first)
    requests = [*first, *_THEN]
    assert (len(first), len(requests)) == (_PLACED, 40)
    running: dict[str, subprocess.Popen[str]] = {}
    kinds: set[str] = set()
    for request in first:
        foretold = p4d.json("explain", *request)
        assert foretold["status"] == "Startable", (request, foretold["message"])
        workload = p4d.hold(*request)
        (new,) = [each for each in shares(p4d).values() if each["id"] not in running]
        running[new["id"]] = workload.process
        assert new["grants"] == foretold["grants"], request
        kinds |= check(request, new)
    assert kinds == {"mig", "whole", "mps"}

    waiting: dict[str, tuple[tuple[str, ...], subprocess.Popen[str]]] = {}
    for number, request in enumerate(_THEN):
        foretold = p4d.json("explain", *request)
        assert foretold["status"] == "Waiting", (request, foretold["message"])
        command = ("sleep", f"{600 + number}")
        process = p4d.start("run", *request, "-q", "--", *command)
        waiting[" ".join(command)] = (request, process)
        wait_until(lambda: len(p4d.json("ps")["waiters"]) == len(waiting), process)

    while waiting or running:
        for new in [each for each in shares(p4d).values() if each["id"] not in running]:
            if new["command"] in waiting:
                request, running[new["id"]] = waiting.pop(new["command"])
                check(request, new)
        if running:
            oldest = next(iter(running))
            process = running.pop(oldest)
            process.terminate()
            process.wait()
            assert oldest not in shares(p4d)
        else:
            wait_until(lambda: bool(shares(p4d)) or not waiting)
    assert not p4d.json("ps")["waiters"]


def shares(machine: TestMachine) -> Mapping[str, Any]:
    return {each["id"]: each for each in machine.json("ps")["allocations"]}


def check(request: tuple[str, ...], share: Mapping[str, Any]) -> set[str]:
    """The mechanisms of the share, none of which is weaker than the request accepts."""
    for grant in share["grants"]:
        assert _STRENGTH[Isolation(grant["isolation"])] >= _STRENGTH[least(request)], (request, share)
    return {grant["mechanism"] for grant in share["grants"]}
