"""What a command pays for before it does anything: `tranche gpus` loads what it shows with, and nothing of what decides."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.conftest import MakeMachine
from tests.machines import TRANCHE, TestMachine

SELDOM_NEEDED = (
    "asyncio",
    "concurrent.futures",
    "fractions",
    "hashlib",
    "prometheus_client",
    "socket",
    "tranche.core.events",
    "tranche.kubernetes",
    "tranche.local",
    "tranche.metrics",
    "tranche.node.execution.executor",
    "tranche.node.host",
    "tranche.node.processes.processes",
    "tranche.planning.decide.allocate",
    "tranche.planning.steps.plan",
    "tranche.planning.steps",
    "tranche_simulator.compiling",
    "tranche_simulator.machines",
    "tranche_simulator.simulated_gpu",
    "yaml",
)


def modules_loaded_by(machine: TestMachine, *arguments: str) -> list[str]:
    """The modules in the order in which they were imported, as the interpreter tells."""
    python, *rest = TRANCHE
    done = subprocess.run(
        [python, "-X", "importtime", *rest, *arguments],
        env={**machine.environment, "TRANCHE_SIM_STATE": "", "TRANCHE_SIM_ROOT": str(machine.machine.directory.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]


def test_a_listing_loads_nothing_that_only_a_decision_or_another_command_needs(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB")
    machine.tranche("run", "--gpus", "1", "--", "true")
    loaded = modules_loaded_by(machine, "--simulate", machine.machine.name, "gpus", "-o", "json")
    assert "tranche.node.store.ledger" in loaded
    assert not [module for module in SELDOM_NEEDED if module in loaded]


def test_no_garbage_is_searched_for_while_a_command_is_imported() -> None:
    script = "import sys, gc, tranche.cli; print(gc.get_threshold()[0], 'click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "50000 False\n"
