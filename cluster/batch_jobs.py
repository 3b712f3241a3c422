"""The 56 jobs of deploy/examples as Kubernetes runs them: how long a batch takes, and which member had which device when."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml

from cluster.cluster import Cluster
from cluster.images import BUSYBOX
from cluster.waiting import wait_for
from cluster.workloads import log, pods_in

EXAMPLES = Path(__file__).parents[1] / "deploy" / "examples" / "56-jobs"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_SECONDS = "SECONDS_EACH"
# The kubelet's times are whole seconds, too coarse for jobs of a few.
_WATCH = "cat /proc/uptime"


@dataclass(frozen=True, slots=True)
class Member:
    """One pod that succeeded. `device` is what it was given, empty without a GPU; times by its own watch, in seconds."""

    index: int
    device: str
    started: float
    finished: float


@dataclass(frozen=True, slots=True)
class Batch:
    """A Job that has ended. `seconds` is from its creation until the API server said that every member had succeeded."""

    seconds: float
    members: tuple[Member, ...]

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(member.device for member in self.members if member.device)

    @property
    def shared(self) -> tuple[tuple[Member, Member], ...]:
        """Members that had one device at the same time."""
        users: dict[str, list[Member]] = defaultdict(list)
        for member in sorted(self.members, key=lambda each: each.started):
            if member.device:
                users[member.device].append(member)
        return tuple(pair for each in users.values() for pair in pairwise(each) if pair[1].started < pair[0].finished)


def example(name: str, *, parallelism: int | None = None, seconds: float | None = None) -> Any:
    """A Job of deploy/examples for a test cluster: with an image and a watch. `seconds` replaces its members' time."""
    job = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (variable,) = (each for each in container["env"] if each["name"] == _SECONDS)
    if seconds is not None:
        variable["value"] = f"{seconds:.3f}"
    *shell, script = container["command"]
    watched = [*shell, f"{_WATCH}; {script}; {_WATCH}"]
    container |= {"image": BUSYBOX, "imagePullPolicy": "Never", "command": watched}
    pod |= {"dnsPolicy": "Default", "terminationGracePeriodSeconds": 1}
    if parallelism is not None:
        job["spec"]["parallelism"] = parallelism
    return job


def run_batch(cluster: Cluster, namespace: str, job: Any, *, timeout: float) -> Batch:
    """Run a Job to its end in a namespace that has no other pods, and remove it; `timeout` in seconds.

    Raises:
        ClusterError: it has not succeeded in that time.
    """
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    name, completions = job["metadata"]["name"], job["spec"]["completions"]
    began = perf_counter()
    cluster.api.request("POST", jobs, job)
    wait_for(
        f"the {completions} members of {name} succeed",
        lambda: (cluster.api.get(f"{jobs}/{name}")["status"].get("succeeded") or 0) >= completions,
        timeout=timeout,
        explain=lambda: str(cluster.api.get(f"{jobs}/{name}")["status"]),
    )
    seconds = perf_counter() - began
    members = tuple(
        _member(cluster, namespace, pod) for pod in pods_in(cluster, namespace) if pod["status"]["phase"] == "Succeeded"
    )
    cluster.kubectl("delete", "job", name, f"--namespace={namespace}", "--cascade=foreground", "--timeout=120s")
    return Batch(seconds, members)


def _member(cluster: Cluster, namespace: str, pod: Any) -> Member:
    began, device, ended = log(cluster, namespace, pod["metadata"]["name"]).splitlines()
    return Member(
        index=int(pod["metadata"]["labels"][INDEX_LABEL]),
        device=device,
        started=float(began.split()[0]),
        finished=float(ended.split()[0]),
    )
