"""What every test may use: golden files with an update flag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test is timed: a slow machine must not turn a property false.
settings.register_profile("tranche", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tranche")

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite golden files from the output")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many crashes the crash tests made, which is what their result is worth."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    properties = [pair for report in calls for pair in report.user_properties]
    if crashes := sum(count for name, count in properties if name == "crashes"):
        terminalreporter.write_line(f"{crashes} crashes were made and recovered from")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with `goldens/<name>` beside the test file, or write it under --update-goldens."""
    folder = Path(request.path).parent / "goldens"
    update = bool(request.config.getoption("--update-goldens"))

    def check(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"no golden file {path}; run pytest --update-goldens and read what it wrote"
        assert text == path.read_text()

    return check
