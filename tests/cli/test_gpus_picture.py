"""`tranche gpus -o svg`: the picture of a machine, and the README's, which the command drew."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.busy_machine import set_to_work
from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine, needs_root

COMMITTED = Path(__file__).parents[2] / "docs/gpus.svg"
SVG = "{http://www.w3.org/2000/svg}"


def told(svg: str) -> str:
    """The picture's text alternative."""
    description = ElementTree.fromstring(svg).find(f"{SVG}desc")
    assert description is not None
    return description.text or ""


def scrubbed(svg: str) -> str:
    return re.sub(r"\b[0-9a-f]{8}\b", "abcdef01", re.sub(r">[^<>]*, \d{4}-[\d -:]+ UTC<", ">WHERE, WHEN<", svg))


def test_the_readmes_picture_is_what_the_command_draws(
    make_machine: MakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    machine = make_machine(machine_type="p4d.24xlarge")
    set_to_work(machine, tmp_path, monkeypatch)
    svg = machine.tranche("gpus", "-o", "svg").stdout
    if pytestconfig.getoption("--update-goldens"):
        COMMITTED.write_text(svg)
    assert scrubbed(svg) == scrubbed(COMMITTED.read_text())


def test_the_picture_says_where_it_is_from_and_shows_what_the_listing_shows(two_a100: TestMachine) -> None:
    two_a100.hold("--mig-profile", "1g.5gb")
    (held,) = two_a100.json("ps")["allocations"]
    svg = two_a100.tranche("gpus", "-o", "svg").stdout
    assert re.search(r">a simulated machine, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC<", svg)
    (placed,) = held["grants"]
    start, size = placed["placement"]["start"], placed["placement"]["size"]
    assert f"1g.5gb at {start}:{size} held by sh -c" in told(svg)
    assert held["id"] in told(svg)
    assert "GPU 1, A100-SXM4-40GB, 40 GiB: free." in told(svg)


@needs_root
def test_without_permission_for_the_ledger_the_picture_says_what_it_does_not_know(readable_a100: TestMachine) -> None:
    readable_a100.hold("--mig-profile", "1g.5gb")
    readable_a100.state_dir.chmod(0o700)
    done = readable_a100.tranche("gpus", "-o", "svg", as_nobody=True)
    assert "; the holders of slices are unknown<" in done.stdout
    assert "not made by Tranche" not in done.stdout
    assert "1g.5gb at 6:1 idle" in told(done.stdout)


def test_a_cluster_has_no_such_picture(two_a100: TestMachine) -> None:
    refused = two_a100.tranche("gpus", "--cluster", "-o", "svg", code=2)
    assert "-o svg draws only one machine" in refused.stderr
