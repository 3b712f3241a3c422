"""A real `tranche cluster-dashboard` beside an API server that knows a few people, and clients that ask it as browsers do."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from tests.cli.api_server_thread import KUBECONFIG, ServedApi, served_api
from tests.dashboard import asking
from tests.dashboard.asking import Answered
from tests.dashboard.cluster.reviewing import People
from tests.kubernetes.fake_api_server import FakeApiServer, Json
from tests.kubernetes.telling.garbling import lease_of
from tests.machines import short_folder
from tests.support import in_process
from tranche.core.allocation import NodeView
from tranche.kubernetes.telling.told_view import REPORT, LayoutReport, ViewReport, lease_name, told, told_to_lease
from tranche.planning.layouts.named_layouts import LayoutList

NAMESPACE = "tranche-system"
WAITING = LayoutReport(True, "wait", offer=LayoutList())
"""Of an agent that waits for what is in use, without a ConfigMap of layouts."""
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


def tell(
    server: FakeApiServer,
    node: str,
    view: NodeView,
    renewed: datetime | None = None,
    *,
    lasts: int | None = None,
    layouts: LayoutReport | None = WAITING,
    use: str = "",
) -> None:
    """As the node's agent does it; what it tells counts for `lasts` seconds, or for as long as an agent says."""
    lease = told_to_lease(ViewReport(node, told(view), layouts=layouts, use=use), (node, f"uid-{node}"))
    moment = (renewed or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    server.put(
        f"{_LEASES}/{lease_name(REPORT, node)}",
        {
            "metadata": {"labels": dict(lease.labels), "annotations": dict(lease.annotations)},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": lasts or lease.seconds, "renewTime": moment},
        },
    )


def tell_garbage(server: FakeApiServer, node: str, text: str) -> None:
    """As an agent that tells that in the place of a view."""
    lease = lease_of(text, node)
    server.put(
        f"{_LEASES}/{lease.name}",
        {
            "metadata": {"labels": dict(lease.labels), "annotations": dict(lease.annotations)},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": lease.seconds, "renewTime": lease.renewed},
        },
    )


def forget_told(server: FakeApiServer, node: str) -> None:
    """As somebody who removes the lease."""
    if (path := f"{_LEASES}/{lease_name(REPORT, node)}") in server.objects:
        server.delete(path)


def pending_pod(namespace: str, name: str, resource: str = "nvidia.com/gpu", **annotations: str) -> Json:
    """A pod that waits for GPUs."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{name}",
            "annotations": annotations,
            "creationTimestamp": "2026-11-22T10:00:00Z",
        },
        "spec": {"containers": [{"resources": {"limits": {resource: "1"}}}]},
        "status": {"phase": "Pending"},
    }


@dataclass
class ServedClusterPage:
    """The server's process, where it is, and what stands behind it."""

    process: subprocess.Popen[str]
    port: int
    api: ServedApi
    people: People
    health_port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        """For a browser."""
        return f"http://{self.host}"

    def ask(
        self, path: str, token: str = "", *, method: str = "GET", form: Mapping[str, str] | None = None, **headers: str
    ) -> Answered:
        """The answer to one request. A header's `_` is `-`."""
        if form is None:
            return asking.ask(self.port, method, path, token, None, headers)
        typed = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return asking.ask(self.port, method, path, token, urlencode(form), typed)

    def readiness(self) -> tuple[int, str]:
        """What a kubelet is answered."""
        answer = asking.ask(self.health_port, "GET", "/readyz", "", None, {})
        return answer.status, answer.text

    def json(self, path: str, token: str) -> dict[str, Any]:
        return self.ask(path, token).json()

    def enter(self, token: str) -> Answered:
        """Send the form on which one enters."""
        return self.ask("/login", method="POST", form={"token": token}, Origin=self.address)

    def news(self, token: str, path: str = "/live") -> AbstractContextManager[Iterator[dict[str, Any]]]:
        """What the server says of changes, for as long as the block lasts; ends when the server ends it."""
        return asking.news(self.port, path, token)


@contextmanager
def served_cluster_page(people: People, *options: str) -> Iterator[ServedClusterPage]:
    """A page of an empty cluster, whose API server answers."""
    ports = ["--port=0", "--health-port=0", "--log-format=json", f"--namespace={NAMESPACE}"]
    with short_folder() as folder:
        command = ["cluster-dashboard", f"--kubeconfig={folder / KUBECONFIG}", *ports, *options]
        with in_process.held_back(command, os.environ) as begin, served_api(folder) as api:
            api.change(people.serve)
            process = begin()
            try:
                assert process.stderr is not None
                line = process.stderr.readline()
                said = json.loads(line)
                assert said["message"] == "serving", line
                yield ServedClusterPage(process, said["port"], api, people, said["health_port"])
            finally:
                process.kill()
                process.communicate()
