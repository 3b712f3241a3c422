"""Of several processes two have clusters; nobody makes one while the machine is compared with itself; everything is run once.

Tests that share what is dear, a browser, an image, packages or a kind of node, are given to one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.scheduling import TwoProcessesWithClusters

ALONE = ("tests/cluster/test_guides.py", "tests/cluster/test_traces.py")
BROWSER = "tests/dashboard/test_browser.py"
IMAGE = "tests/release/test_image.py"
PACKAGES = ("tests/release/test_archive.py", "tests/release/test_packages.py")
ON_A_P5 = ("tests/cluster/test_feature_labels.py", "tests/cluster/test_metrics.py")


class Process:
    """One of several: it begins with a test when it knows the next one, or that there is none."""

    def __init__(self) -> None:
        self.gateway = self
        self.id = "process"
        self.given: list[int] = []
        self.done: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, numbers: Sequence[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def runs(self) -> bool:
        return len(self.given) > 1 or (self.shutting_down and bool(self.given))


def nodeids(files: dict[str, int]) -> list[str]:
    return [f"{file}::test_{number}" for file, count in files.items() for number in range(count)]


@st.composite
def collections(draw: st.DrawFn) -> list[str]:
    alone = {file: draw(st.integers(0, 4)) for file in ALONE}
    clusters = {f"tests/cluster/test_{number}.py": draw(st.integers(1, 4)) for number in range(draw(st.integers(0, 8)))}
    others = {file: draw(st.integers(0, 4)) for file in (BROWSER, IMAGE, *ON_A_P5, *PACKAGES)}
    return nodeids({"tests/a/test_a.py": draw(st.integers(0, 20)), **clusters, **alone, **others})


@given(tests=collections().filter(bool), count=st.integers(1, 6), data=st.data())
def test_everything_runs_once_and_nobody_makes_a_cluster_beside_who_wants_none(
    tests: list[str], count: int, data: st.DataObject
) -> None:
    processes, schedule = begun(tests, count)

    while running := [process for process in processes if process.runs]:
        at_work = {tests[process.given[0]].partition("::")[0] for process in running}
        if at_work & set(ALONE):
            assert len([file for file in at_work if file.startswith("tests/cluster/")]) == 1
        process = data.draw(st.sampled_from(running))
        number = process.given.pop(0)
        process.done.append(number)
        schedule.mark_test_complete(process, number)

    assert sorted(number for process in processes for number in process.done) == list(range(len(tests)))
    workers: dict[str, set[int]] = {}
    for index, process in enumerate(processes):
        for number in process.done:
            workers.setdefault(tests[number].partition("::")[0], set()).add(index)
    of_clusters = {file: found for file, found in workers.items() if file.startswith("tests/cluster/")}
    assert all(len(found) == 1 for found in of_clusters.values())
    for files in ((BROWSER,), (IMAGE,), ON_A_P5, PACKAGES):
        assert len(set().union(*(workers.get(file, set()) for file in files))) <= 1
    assert len(set().union(*of_clusters.values())) <= 2


def test_both_clusters_are_used_from_the_first_test_after_the_walks_on() -> None:
    files = {f"tests/cluster/test_{number}.py": 3 for number in range(6)}
    tests = nodeids({**files, ALONE[0]: 3, "tests/a/test_a.py": 90})
    processes, schedule = begun(tests, 3)

    rounds = []
    while running := [process for process in processes if process.runs]:
        rounds.append(sum(tests[process.given[0]].startswith("tests/cluster/test_") for process in running))
        for process in running:
            number = process.given.pop(0)
            process.done.append(number)
            schedule.mark_test_complete(process, number)

    assert rounds[:3] == [1, 1, 1]
    assert rounds[6:11] == [2, 2, 2, 2, 2]


def begun(tests: list[str], count: int) -> tuple[list[Any], TwoProcessesWithClusters]:
    config: Any = SimpleNamespace(
        getvalue=lambda name: count * ["popen"], option=SimpleNamespace(loadscopereorder=False)
    )
    schedule = TwoProcessesWithClusters(config)
    processes: list[Any] = [Process() for _ in range(count)]
    for process in processes:
        schedule.add_node(process)
    for process in processes:
        schedule.add_node_collection(process, tests)
    schedule.schedule()
    return processes, schedule
