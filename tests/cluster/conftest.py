"""A cluster for the tests: made when the first one asks for it, with the nodes that are asked for, and removed after the
last test of this package.

TRANCHE_TEST_CLUSTER names a cluster that runs already (`python -m cluster up --name try`); it is used and left running.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator

import pytest
from cluster.cluster import Cluster, prepare_machine, remove_cluster, remove_leftovers, this_process
from cluster.errors import UnsuitableMachine
from cluster.node import Node
from cluster.node_layouts import forget_stale_counts
from cluster.waiting import wait_for
from release.helm import why_no_helm
from release.image import MadeImage

from tests.support.agent_image import image_or_skip
from tranche.node.locks.locks import FileLock

# MIG operations take a tenth of their time on hardware; tests that measure set their own.
_TIME_SCALE = 0.1
_numbers = itertools.count(1)
_NAMESPACES = "/api/v1/namespaces"
# The group and kinds of what makes pods, those first that make the others.
_MAKERS = (
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "daemonsets"),
    ("apps", "statefulsets"),
    ("batch", "jobs"),
)


@pytest.fixture(scope="session")
def suitable_machine() -> None:
    """A machine that a cluster can run on, without what tests that were killed have left: what is missing is installed or built.

    Tests are skipped where that cannot be.
    """
    try:
        prepare_machine(_say)
    except UnsuitableMachine as error:
        pytest.skip(error.message)
    if reason := why_no_helm():
        pytest.skip(reason)
    remove_leftovers()


@pytest.fixture
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The right to make clusters beside the session's own: one test at a time, of whichever process, has it."""
    shared_by_processes = tmp_path_factory.getbasetemp().parent
    with FileLock(shared_by_processes / "own-cluster.lock"):
        yield


@pytest.fixture(scope="package")
def cluster(suitable_machine: None, agent_image: MadeImage) -> Iterator[Cluster]:
    """A cluster without nodes, but for those that other fixtures have added."""
    running = os.environ.get("TRANCHE_TEST_CLUSTER")
    if running:
        yield Cluster.open(running)
        return
    name = f"test-{os.getpid()}"
    try:
        yield Cluster.create(name, {}, time_scale=_TIME_SCALE, owner=this_process(), say=_say)
    finally:
        remove_cluster(name)


@pytest.fixture(scope="session")
def agent_image() -> MadeImage:
    """The agent's image; where it cannot be built, no agent runs, and the tests of the cluster are skipped."""
    return image_or_skip()


@pytest.fixture(scope="package")
def p4d(cluster: Cluster) -> Node:
    """A node with eight A100 40 GB."""
    return node_of(cluster, "p4d", "p4d.24xlarge")


@pytest.fixture(scope="package")
def p5(cluster: Cluster) -> Node:
    """A node with eight H100 80 GB."""
    return node_of(cluster, "p5", "p5.48xlarge")


@pytest.fixture(scope="package")
def g4dn(cluster: Cluster) -> Node:
    """A node with a T4, which has no MIG."""
    return node_of(cluster, "g4dn", "g4dn.xlarge")


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A Kubernetes namespace of the test's own; what is in it is gone before the next test."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    cluster.make_namespace(name)
    for node, resources in forget_stale_counts(cluster).items():
        _say(f"node {node} counted {', '.join(resources)}, of which its kubelet knows nothing")
    yield name
    # A test that failed may have left a part of the cluster down.
    cluster.start(_say)
    # What makes pods goes first, or it would make new ones.
    for group, kind in _MAKERS:
        cluster.api.delete_all(f"/apis/{group}/v1/namespaces/{name}/{kind}")
    # Without force: a pod that is gone from the API server then holds no device any more.
    pods = f"{_NAMESPACES}/{name}/pods"
    cluster.api.delete_all(pods, grace_seconds=1)
    wait_for(f"the pods of {name} are gone", lambda: not cluster.api.get(pods)["items"])
    cluster.api.delete(f"{_NAMESPACES}/{name}")


def node_of(cluster: Cluster, name: str, machine: str) -> Node:
    """The node of that name, added to the cluster at first use."""
    if any(node.name == name for node in cluster.nodes):
        return cluster.node(name)
    return cluster.add_node(name, machine)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
