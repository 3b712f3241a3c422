"""Pods that compute: a program of CUDA's driver API in the agent's image, the only one of a test cluster that has an interpreter.

The program needs no package. It takes all the memory that it is let have, keeps the GPU busy, and prints how fast it computes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from release.image import full_name

from cluster.claims import with_claim
from cluster.cluster import Cluster
from cluster.workloads import deployment, log

PROGRAM = Path(__file__).with_name("tenant_program.py")
_RATE = re.compile(r"(\d+) GFLOPS")
_GIVEN = re.compile(r"(\d+) MiB, (\d+) multiprocessors")


def tenants(
    name: str, namespace: str, replicas: int, resource: str = "", *, amount: int = 1, claim: str = ""
) -> dict[str, Any]:
    """A Deployment of tenants, each with so many devices of that resource, or with a claim of that template."""
    made = deployment(name, namespace, replicas, limits={resource: amount} if resource else {})
    if claim:
        made["spec"]["template"] = with_claim(made["spec"]["template"], claim)
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["image"] = full_name()
    container["command"] = ["/opt/tranche/bin/python", "-u", "-c", PROGRAM.read_text()]
    return made


def rates(cluster: Cluster, namespace: str, pod: str) -> list[int]:
    """The GFLOPS that a tenant has printed so far. Errors as for `log`."""
    return [int(found) for found in _RATE.findall(log(cluster, namespace, pod))]


def given(cluster: Cluster, namespace: str, pod: str) -> tuple[int, int] | None:
    """How many MiB and multiprocessors a tenant was let have; None before it has said so."""
    found = _GIVEN.search(log(cluster, namespace, pod))
    return (int(found[1]), int(found[2])) if found else None
