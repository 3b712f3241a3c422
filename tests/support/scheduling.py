"""Which of several processes runs which test: clusters for two of them, and everything else for whoever has nothing to do."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

_CLUSTER_TESTS = "tests/cluster/"
# What compares the machine with itself before and after: nobody makes a cluster meanwhile.
_WITHOUT_OTHERS = ("tests/cluster/test_traces.py", "tests/cluster/test_guides.py")
# What needs a node that nothing else needs: one cluster has it, and the other does without.
_ON_ONE_NODE = {"tests/cluster/test_metrics.py": "tests/cluster/test_feature_labels.py"}
# The tests of each share what takes seconds to make: all files of the image, or all modules as syntax trees.
_SHARING = ("tests/release/test_image.py", "tests/test_glossary.py", "tests/test_purity.py", "tests/test_run_path.py")
# These share a browser, which takes longer to start than most of them take, or the distribution's packages.
_BROWSER = "browser"
_PACKAGES = ("tests/release/test_packages.py", "tests/release/test_archive.py")
# Its tests change control groups of the machine.
_MACHINES_GROUPS = "tests/local/test_device_fence.py"
_CLUSTERS = 2
"""How many processes have a cluster of their own."""


class TwoProcessesWithClusters(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Hands out the tests of clusters by file and first, to processes that have a cluster.

    Those of a browser, of the machine's control groups and of what a file's tests share go by file, too, those of the packages
    together, and all others by function, with all its parameters.
    Where the programs of a cluster are still being built, one process waits for them and the others have work.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._with_cluster: set[WorkerController] = set()
        self._waiting: set[WorkerController] = set()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        nodeid = self.registered_collections[node][item_index]
        scope = self._split_scope(nodeid)
        work = self.assigned_work[node]
        work[scope][nodeid] = True
        if all(work[scope].values()):
            # pytest-xdist keeps what is done, and counts through all of it after each test.
            del work[scope]
        self._reschedule(node)
        for waiting in [each for each in self.nodes if each in self._waiting]:
            # As at the start: it begins with a test when it knows the next one, or that there is none.
            self._reschedule(waiting)
            self._reschedule(waiting)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file in _WITHOUT_OTHERS:
            return _CLUSTER_TESTS
        if file.startswith(_CLUSTER_TESTS):
            return _ON_ONE_NODE.get(file, file)
        if file in _PACKAGES:
            return _PACKAGES[0]
        by_file = file in (_MACHINES_GROUPS, *_SHARING) or _BROWSER in file.rpartition("/")[2]
        return file if by_file else nodeid.partition("[")[0]

    def _reschedule(self, node: WorkerController) -> None:
        # One that replaces another has not collected yet.
        if node in self.registered_collections:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give it a piece of work, if there is one for it now; if not, it is asked again after the next test."""
        if (scope := self._next_for(node)) is None:
            self._waiting.add(node)
            return
        self._waiting.discard(node)
        if scope.startswith(_CLUSTER_TESTS):
            self._with_cluster.add(node)
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _next_for(self, node: WorkerController) -> str | None:
        self._with_cluster &= set(self.nodes)
        of_clusters = (scope for scope in self.workqueue if scope.startswith(_CLUSTER_TESTS))
        if node in self._with_cluster or (len(self._with_cluster) < _CLUSTERS and self._may_make_clusters()):
            first = _CLUSTER_TESTS if _CLUSTER_TESTS in self.workqueue else next(of_clusters, None)
            if first is not None:
                return first
        return next((scope for scope in self.workqueue if not scope.startswith(_CLUSTER_TESTS)), None)

    def _may_make_clusters(self) -> bool:
        """Whether nobody is busy with what wants no others beside it."""
        return all(all(work.get(_CLUSTER_TESTS, {}).values()) for work in self.assigned_work.values())
