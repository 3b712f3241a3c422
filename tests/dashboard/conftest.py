"""A machine of two A100 with its dashboard, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from release.browser import browser_running

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


@pytest.fixture(scope="module")
def running_browser() -> Iterator[Any]:
    """It holds on to the process's event loop, so it lives no longer than one file's tests."""
    with browser_running() as running:
        yield running


@pytest.fixture
def browser(running_browser: Any) -> Iterator[Any]:
    """The browser. What the test has left open is closed: it would look for its server for as long as the browser runs."""
    yield running_browser
    for context in running_browser.contexts:
        context.close()
