"""A lab shares a server through the service: whatever is killed, everybody gets what they are promised, and nothing is lost.

`TRANCHE_LAB_REQUESTS` says how many requests there are, and `TRANCHE_LAB_SEED` which random life it is.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType

import pytest

from tests.local.lab import Lab
from tests.local.lab_accounts import GROUPS, group_of
from tests.local.lab_observer import Limits, Observer, Seen, await_true, lines_of
from tests.local.sessions import READABLE_PYTHON
from tests.machines import machine_in, needs_root, readable_folder
from tests.node.processes import Child
from tests.support.length import LONG, rounds
from tranche.node.state.session import StateFolder

pytestmark = [
    needs_root,
    pytest.mark.skipif(READABLE_PYTHON is None, reason="there is no Python that every user may execute"),
    pytest.mark.timeout(7200),
]

REQUESTS = rounds(10_000, 80, "TRANCHE_LAB_REQUESTS")
SEED = int(os.environ.get("TRANCHE_LAB_SEED", "0")) or secrets.randbits(32)
USERS, CROWD, GPUS = (30, 40, 8) if LONG else (6, 12, 3)
FIRST = 1_000_000 + os.getpid() % 10_000 * 100
LIMITS = Limits(gpus=2.0, shares=6)
GROUP_LIMITS = {"msc": 3.0 if LONG else 1.5}
NO_LIMITS = Limits(gpus=100, shares=1000)
WEIGHTS = {"phd": 3, "msc": 1}
RESTARTS = 20 if LONG else 3
HURT = 0.2 if LONG else 0.25
SLICES = [
    ("--mig-profile", "1g.10gb"),
    ("--mig-profile", "2g.20gb"),
    ("--mig-profile", "3g.40gb"),
    ("--gpu-memory", "8G"),
    ("--gpu-memory", "30G"),
    ("--gpu", "0.5"),
    ("--gpus", "1"),
    ("--gpu-memory", "8G", "--count", "2"),
]
PARTS = [("--gpu-memory", "8G", "--compute", "20"), ("--gpu", "0.25", "--isolation", "none", "--compute", "30")]


@contextmanager
def lab_of(*requests: tuple[str, ...], gpus: int = GPUS) -> Iterator[Lab]:
    print(f"TRANCHE_LAB_SEED={SEED}")
    with readable_folder() as folder, machine_in(folder, *("H100-80GB-SXM",) * gpus) as machine:
        machine.cache = folder / "cache"
        lab = Lab(machine, random.Random(SEED), FIRST, USERS, CROWD, HURT, requests, folder / "alarm")
        lab.serve()
        try:
            yield lab
        finally:
            lab.end()


@contextmanager
def observed(
    lab: Lab, limits: Limits = NO_LIMITS, group_limits: Mapping[str, float] = MappingProxyType({})
) -> Iterator[Callable[[], Seen]]:
    """An observer in a process of its own; the function ends it and gives what it saw."""
    groups = {name: frozenset(uid for uid in lab.users if group_of(uid) == name) for name in GROUPS}
    watch = Observer(lab.machine.machine, lab.machine.state_dir, lab.users, limits, groups, group_limits, lab.alarm)
    stop, stopping = os.pipe()
    child = Child(lambda: watch.watch(stop))

    def ended() -> Seen:
        os.write(stopping, b".")
        seen = child.result()
        if wrong := [*seen.wrong, *lab.wrong]:
            pytest.fail("\n".join((*wrong, lab.said())), pytrace=False)
        return seen

    try:
        yield ended
    finally:
        child.end()
        os.close(stop)
        os.close(stopping)


def test_whatever_is_killed_a_lab_shares_a_server(record_property: Callable[[str, str], None]) -> None:
    with lab_of(*SLICES, *PARTS) as lab:
        lab.order("policy", "quota", "--gpus", str(LIMITS.gpus), "--shares", str(LIMITS.shares))
        for group, gpus in GROUP_LIMITS.items():
            lab.order("policy", "quota", "--group", group, "--gpus", str(gpus))
        lab.order("policy", "set", "--gpu", str(GPUS - 1), "sharing=shared")
        lab.order("policy", "preemption", "--on")
        if SEED % 2:
            lab.order("policy", "fair")
        with observed(lab, LIMITS, GROUP_LIMITS) as ended:
            lab.live(REQUESTS, RESTARTS)
            seen = ended()
        check_all_gone(lab)
        with closing(sqlite3.connect(lab.machine.ledger)) as db:
            ((preempted,),) = db.execute("SELECT count(*) FROM events WHERE kind = 'Preempted'").fetchall()
    record_property("figure", f"a lab, seed {SEED}: {lab.said()}; {preempted} preempted; {seen}")


def check_all_gone(lab: Lab) -> None:
    """The register is empty, each GPU can be given whole, and nothing of the lab is left."""
    held: list[object] = []

    def empty() -> bool:
        found = json.loads(lab.order("ps", "-o", "json"))
        held[:] = [*found["allocations"], *found["waiters"]]
        return not held

    assert await_true(empty, 60), (held, lab.said())
    whole = lab.order("run", "--timeout", "60s", "--gpus", str(GPUS), "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert whole.count("GPU-") == GPUS
    with closing(sqlite3.connect(lab.machine.ledger)) as db:
        for table in (
            "allocations",
            "grants",
            "units",
            "devices",
            "parts",
            "compute_units",
            "waiters",
            "changing_gpus",
        ):
            assert db.execute(f"SELECT * FROM {table}").fetchall() == []
        assert db.execute("SELECT * FROM plans WHERE status NOT IN ('done', 'undone')").fetchall() == []
    locks = StateFolder(lab.machine.state_dir).waiter("any").parent.parent
    assert [each for name in ("allocations", "waiters") for each in (locks / name).iterdir()] == []
    assert not any("Traceback" in line or "the process failed" in line for line in lines_of(lab.log))


@pytest.mark.long
def test_groups_use_a_busy_server_by_their_weights(record_property: Callable[[str, str], None]) -> None:
    with lab_of(("--gpus", "1"), gpus=2) as lab:
        for group, weight in WEIGHTS.items():
            lab.order("policy", "fair", "--group", group, "--weight", str(weight))
        users = {group: [uid for uid in lab.users if group_of(uid) == group][:2] for group in WEIGHTS}
        with observed(lab) as ended:
            lab.keep_busy([uid for each in users.values() for uid in each], 400, 3)
            seen = ended()
        lab.finish()
        assert lab.wrong == []
    phd, msc = (sum(seen.gpu_seconds.get(uid, 0.0) for uid in users[group]) for group in WEIGHTS)
    record_property("figure", f"weights 3:1 gave {phd:.1f} and {msc:.1f} GPU-seconds to the groups")
    assert phd / (phd + msc) == pytest.approx(0.75, abs=0.05)
