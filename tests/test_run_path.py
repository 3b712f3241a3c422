"""Architecture's lists of the modules that a request passes are the ways that requests take."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests.kubernetes.dra.claim_node import ClaimNodeStandIn, on_claim_node
from tests.machines import machine_in
from tests.node.processes import Child
from tests.support.entered_files import Tracer, tracing

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs/architecture.md"
LONG = 3600.0
MOST_OF_A_RUN = 75
MOST_OF_A_CLAIM_ALONE = 18


def section(title: str) -> str:
    """The page's section of that title."""
    return PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def split(module: str) -> tuple[str, str]:
    """Its package and its name in there."""
    package, _, name = module.rpartition(".")
    return package, name


def table_of(modules: list[str]) -> str:
    """The modules as the page has them: a row for each package."""
    rows = []
    for package, inside in groupby(sorted(map(split, modules)), lambda each: each[0]):
        names = ", ".join(f"`{name}`" for _, name in inside)
        rows.append(f"| `tranche.{package}` | {names} |")
    return "\n".join(("| package | modules |", "|---|---|", *rows))


def compare(title: str, modules: list[str], request: pytest.FixtureRequest) -> None:
    """The section of that title has the table of those modules, or gets it under --update-goldens."""
    found = re.search(r"^\| package \| modules \|\n(?:\|.*\|(?:\n|\Z))+", section(title), re.MULTILINE)
    assert found is not None
    if request.config.getoption("--update-goldens"):
        old = section(title)
        PAGE.write_text(PAGE.read_text().replace(old, old.replace(found[0].rstrip("\n"), table_of(modules))))
        return
    assert found[0].rstrip("\n") == table_of(modules), "see the difference, then run this test with --update-goldens"


def run_path(folder: Path) -> list[str]:
    """The modules that `tranche run` enters, in order, on a machine whose GPUs have MIG mode off.

    The first command of a ledger also looks for shares and a fence of a lost one. It counts only what every command does.
    """
    file = folder / "entered"
    command = ("run", "--gpu-memory", "4Gi", "--", "true")
    with machine_in(folder, machine_type="p4d.24xlarge") as machine:
        machine.tranche("run", "--gpus", "1", "--", "true")
        subprocess.run(
            [sys.executable, "-m", "tests.support.entered_files", str(file), *command],
            cwd=REPOSITORY,
            env=machine.environment,
            check=True,
            capture_output=True,
        )
    return file.read_text().splitlines()


def claim_path() -> list[str]:
    """The modules that the preparation of a claim enters, on a node whose GPUs have MIG mode off.

    What the driver does meanwhile for other reasons, such as to look after health, does not count.
    """
    own = ("kubernetes.dra.plugin_server", "kubernetes.dra.preparer", "kubernetes.node.claim_queue", "node.claims")
    recording = False
    tracer = Tracer(counts=lambda outermost: recording and outermost in own)

    async def test(node: ClaimNodeStandIn) -> None:
        nonlocal recording
        claim = node.allocate("a", "gpu-0-1g-5gb-3")
        async with node.driver(care_seconds=LONG):
            recording = True
            assert await node.prepare(claim) == [""]
            recording = False

    with tracing(tracer):
        on_claim_node(test, machine_type="p4d.24xlarge")
    return tracer.modules


@pytest.fixture(scope="module")
def run_modules(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run_path(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def claim_modules() -> list[str]:
    return Child(claim_path).result()


def test_a_request_passes_the_modules_that_the_page_lists(
    run_modules: list[str], request: pytest.FixtureRequest
) -> None:
    assert len(run_modules) <= MOST_OF_A_RUN
    compare("The path of a request", run_modules, request)


def test_a_claim_passes_the_modules_that_the_page_lists(
    run_modules: list[str], claim_modules: list[str], request: pytest.FixtureRequest
) -> None:
    assert len(set(claim_modules) - set(run_modules)) <= MOST_OF_A_CLAIM_ALONE
    compare("The path of a claim", claim_modules, request)
