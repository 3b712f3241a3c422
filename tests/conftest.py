"""What every test may use, golden files with an update flag; and what the last lines say beside pytest's own."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster.binaries import PROGRAMS
from hypothesis import HealthCheck, settings
from release.browser import why_no_browser
from release.helm import why_no_helm
from release.monitoring import why_no_prometheus
from release.one_at_a_time import one_at_a_time
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.grpc_use import keep_grpc_out_of_this_process
from tests.support.huge_pages import use_huge_pages
from tests.support.length import LONG, cases
from tests.support.scheduling import TwoProcessesWithClusters
from tranche_simulator.build import ensure_built
from tranche_simulator.errors import SimulatorError

# No test is timed: a slow machine must not turn a property false.
settings.register_profile(
    "tranche", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=cases(100)
)
settings.load_profile("tranche")

Golden = Callable[[str, str], None]

# What a test may need that not every machine has: a marker, and the word for it in the last lines.
_NEEDS = {
    "browser": "a browser",
    "cluster": "a cluster",
    "gpu": "a GPU",
    "helm": "Helm",
    "image": "an image",
    "prometheus": "Prometheus",
    "systemd": "a systemd container",
}
_NEEDED = "needed"
_REPOSITORY = Path(__file__).parents[1]
_CLUSTER_SECONDS = 1800
"""The limit of a test of a cluster, the making of the cluster included; pyproject.toml has that of all others."""
_LAST_THREAD_SECONDS = 10.0
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


_LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite golden files from the output")


def pytest_configure() -> None:
    """Heed every signal: a shell starts what runs in its background with SIGINT ignored, and all children inherit that."""
    for number in signal.valid_signals() - set(_IGNORED_BY_PYTHON):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """After everything else: crashes made, figures that tests observed, what was left out or could not be run here, and why."""
    yield
    reports = [report for found in terminalreporter.stats.values() for report in found]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    properties = [pair for report in calls for pair in report.user_properties]
    if crashes := sum(count for name, count in properties if name == "crashes"):
        terminalreporter.write_line(f"{crashes} crashes were made and recovered from")
    for figure in (value for name, value in properties if name == "figure"):
        terminalreporter.write_line(figure)
    if left_out := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"{left_out} long tests left out; make test-long runs them")
    for (needed, reason), files in _not_run(terminalreporter.stats.get("skipped", [])).items():
        counts = ", ".join(f"{count} of {file}" for file, count in files.items())
        terminalreporter.write_line(f"not run, for want of {needed} ({reason}): {counts}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, and never look at what was collected again.

    It lives as long as the process. Each search would go through half a million objects, and copy their memory in a fork.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let reports tell what a test needs, also those that come from another process; a cluster's tests have more time.

    Long tests are left out unless TRANCHE_LONG is set, and counted.
    """
    long = [] if LONG else [item for item in items if item.get_closest_marker("long") is not None]
    if long:
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
        config.hook.pytest_deselected(items=long)
    config.stash[_LEFT_OUT] = len(long)
    for item in items:
        if item.get_closest_marker("cluster") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_CLUSTER_SECONDS))
        for marker, needed in _NEEDS.items():
            if item.get_closest_marker(marker) is not None:
                item.user_properties.append((_NEEDED, needed))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this one how many long tests were left out."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["long"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Take over how many long tests a process has left out: each has collected all tests."""
    told = getattr(node, "workeroutput", None) or {}
    node.config.stash[_LEFT_OUT] = max(node.config.stash.get(_LEFT_OUT, 0), told.get("long", 0))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Before a test of a cluster, and before its time runs, wait until nobody builds a cluster's programs any more."""
    # A test of these hooks runs cases of its own, which need no programs.
    if item.get_closest_marker("cluster") is not None and item.config.rootpath.samefile(_REPOSITORY):
        capture = item.config.pluginmanager.getplugin("capturemanager")
        with one_at_a_time(PROGRAMS, lambda line: _say_beside(capture, line)):
            pass
    return (yield)


def _say_beside(capture: Any, line: str) -> None:
    with capture.global_and_fixture_disabled():
        print(line, file=sys.stderr, flush=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a browser, Helm or Prometheus where that cannot be had."""
    if item.get_closest_marker("browser") is not None and (reason := why_no_browser()):
        pytest.skip(reason)
    keep_grpc_out_of_this_process()
    use_huge_pages()
    if item.get_closest_marker("helm") is not None and (reason := why_no_helm()):
        pytest.skip(reason)
    if item.get_closest_marker("prometheus") is not None and (reason := why_no_prometheus()):
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """No thread outlives its file's tests: a command would start in a new interpreter, ten times as slowly, instead of a fork."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        end = time.monotonic() + _LAST_THREAD_SECONDS
        while (left := threading.enumerate()[1:]) and time.monotonic() < end:
            time.sleep(0.01)
        assert not left, f"threads outlive the tests of {item.path.name}: {', '.join(each.name for each in left)}"
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Compile the simulator before there are several processes: each would, at once, with its first test."""
    with suppress(SimulatorError):  # which the tests tell
        ensure_built()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Of several processes two have a cluster, and begin with its tests."""
    return TwoProcessesWithClusters(config, log)


def _not_run(skipped: Sequence[pytest.TestReport]) -> dict[tuple[str, str], Counter[str]]:
    """How many tests of each file were not run, by what they need and reason."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for report in skipped:
        for name, needed in report.user_properties:
            if name == _NEEDED and isinstance(report.longrepr, tuple):
                reason = report.longrepr[2].removeprefix("Skipped: ")
                found.setdefault((str(needed), reason), Counter())[report.location[0]] += 1
    return found


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
