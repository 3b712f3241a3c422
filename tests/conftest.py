"""What every test may use, golden files with an update flag; and what the last lines say of the tests that were not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster.preflight import why_not
from hypothesis import HealthCheck, settings

# No test is timed: a slow machine must not turn a property false.
settings.register_profile("tranche", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tranche")

Golden = Callable[[str, str], None]

_CLUSTER = "cluster"
_left_out = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite golden files from the output")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """After everything else: how many crashes the crash tests made, and which tests of a cluster were not run, and why."""
    yield
    reports = [report for found in terminalreporter.stats.values() for report in found]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    properties = [pair for report in calls for pair in report.user_properties]
    if crashes := sum(count for name, count in properties if name == "crashes"):
        terminalreporter.write_line(f"{crashes} crashes were made and recovered from")
    for reason, count in _not_run(terminalreporter.stats.get("skipped", []), config).items():
        terminalreporter.write_line(f"cluster tests: {count} not run: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let reports tell the tests of a cluster from others, also those that come from another process."""
    for item in filter(_needs_cluster, items):
        item.user_properties.append((_CLUSTER, True))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the tests of a cluster that a selection leaves out."""
    for item in filter(_needs_cluster, items):
        item.config.stash[_left_out] = item.config.stash.get(_left_out, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: pass the count on."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[_CLUSTER] = session.config.stash.get(_left_out, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's count over; all workers collect, and leave out, the same tests."""
    stash = node.config.stash
    stash[_left_out] = max(stash.get(_left_out, 0), getattr(node, "workeroutput", {}).get(_CLUSTER, 0))


def _needs_cluster(item: pytest.Item) -> bool:
    return item.get_closest_marker(_CLUSTER) is not None


def _not_run(skipped: Sequence[pytest.TestReport], config: pytest.Config) -> Counter[str]:
    """How many tests of a cluster were not run, by reason. What was chosen by name or path leaves no one in doubt."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in skipped
        if (_CLUSTER, True) in report.user_properties and isinstance(report.longrepr, tuple)
    )
    left_out = config.stash.get(_left_out, 0)
    if left_out and _CLUSTER in config.option.markexpr:
        cannot = why_not()
        reasons[f"no cluster can run here: {cannot}" if cannot else "run them with `make test-cluster`"] += left_out
    return reasons


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
