"""Pods, `tranche run`, layouts and strategies compete for one node in random rounds, while its parts are killed and stopped.

TRANCHE_ROUNDS asks for more rounds, TRANCHE_SEED for the same choices once more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.agents import agent_on, install_rights
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, wait_for_state

from tests.cluster.competition import strategies
from tests.cluster.competition.contest import Contest
from tests.cluster.competition.outages import Outages
from tests.cluster.competition.pods import Pods
from tests.cluster.competition.runs import Runs
from tests.cluster.competition.witness import Witness
from tests.support.length import rounds

ROUNDS = rounds(30, 5, "TRANCHE_ROUNDS")
CALM_AFTER = 25

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800 + 15 * ROUNDS)]


def test_no_slice_is_lost_or_given_twice_and_no_queue_held_up(
    cluster: Cluster, p4d: Node, namespace: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("TRANCHE_SEED") or random.randrange(1 << 30))
    print(f"TRANCHE_SEED={seed} TRANCHE_ROUNDS={ROUNDS}")  # pytest shows it, and what follows, with a failure
    token = f"{p4d.cgroup.path}/{seed}".replace("/", ".")
    install_rights(cluster)
    strategies.write_default(cluster, "mixed")
    runs = Runs(p4d, token, tmp_path)
    try:
        with (
            agent_on(cluster, p4d, strategies.BY_CONFIG_MAP) as agent,
            Witness(token, p4d.environment()) as witness,
        ):
            outages = Outages(cluster, p4d, agent)
            pods = Pods(cluster, p4d, namespace)
            contest = Contest(cluster, p4d, random.Random(seed), witness, outages, pods, runs)
            label(cluster, p4d, "all-balanced")
            wait_for_state(cluster, p4d, "success")
            try:
                for number in range(1, ROUNDS + 1):
                    contest.play()
                    if number % CALM_AFTER == 0:
                        contest.calm()
                contest.finish()
            finally:
                outages.end_all()
                runs.end_all()
        done = ", ".join(f"{count} {name}" for name, count in sorted(contest.counts.items()))
        ended = ", ".join(f"{count} {name}" for name, count in sorted(contest.ended.items()))
        record_property(
            "figure",
            f"competition, seed {seed}: {ROUNDS} rounds ({done}); {witness.looks} looks at up to {witness.most_held} held "
            f"devices; none had two holders, none was lost; pods ended: {ended}; commands ended with: {runs.exit_codes()}",
        )
    finally:
        strategies.remove(cluster, p4d)
        label(cluster, p4d, None)
        p4d.renew_machine()
