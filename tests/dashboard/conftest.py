"""A machine of two A100 with its dashboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboard.served import Dashboards, ServedDashboard
from tests.machines import TestMachine, machine_in, short_folder


@pytest.fixture
def machine() -> Iterator[TestMachine]:
    """Two A100-40GB, uncut."""
    with short_folder() as folder, machine_in(folder, "A100-40GB", "A100-40GB") as made:
        yield made


@pytest.fixture
def dashboards(machine: TestMachine) -> Iterator[Dashboards]:
    """Starts dashboards of that machine."""
    started = Dashboards(machine)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def dashboard(dashboards: Dashboards) -> ServedDashboard:
    """One that serves."""
    return dashboards.start()


@pytest.fixture
def acting(dashboards: Dashboards) -> ServedDashboard:
    """One that acts."""
    return dashboards.start(0, "--act")
