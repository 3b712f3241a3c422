"""A registry of container images on loopback, for tests whose subject is pulling: it has what was pushed, and no more."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from release.oci_archive import OciArchive
from release.programs import debian_program

from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.record import port_is_free
from cluster.units import Cgroup, Unit
from cluster.waiting import wait_for

_PORT = 9
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that runs. Nodes of its cluster pull from it without TLS, as from every registry on loopback."""

    host: str

    def push(self, archive: Path, repository: str, tag: str) -> str:
        """Put an image into it; how a pod names it then.

        Raises:
            ClusterError: the registry refuses.
        """
        image = OciArchive(archive)
        for digest, content in image.blobs():
            if not self._has(repository, digest):
                place = self._request("POST", f"/v2/{repository}/blobs/uploads/", b"").partition("/v2/")[2]
                joint = "&" if "?" in place else "?"
                self._request("PUT", f"/v2/{place}{joint}digest={digest}", content)
        manifest = image.manifest()
        self._request("PUT", f"/v2/{repository}/manifests/{tag}", manifest, str(json.loads(manifest)["mediaType"]))
        return f"{self.host}/{repository}:{tag}"

    def _has(self, repository: str, digest: str) -> bool:
        try:
            self._request("HEAD", f"/v2/{repository}/blobs/{digest}", b"")
        except ClusterError:
            return False
        return True

    def _request(self, method: str, path: str, body: bytes, kind: str = "application/octet-stream") -> str:
        """One request; where it says that things are to be found."""
        connection = http.client.HTTPConnection(self.host, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body=body, headers={"Content-Type": kind})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise ClusterError(f"{method} {path}: {answer.status} {content.decode(errors='replace')[:500]}")
        return answer.getheader("Location", "")


@contextmanager
def registry_of(cluster: Cluster) -> Iterator[Registry]:
    """An empty registry for the length of the block. ReleaseError where Debian's docker-registry cannot be had."""
    program = debian_program("docker-registry", "usr/bin/docker-registry")
    host = f"127.0.0.1:{cluster.record.port(_PORT)}"
    folder = cluster.folder / "registry"
    folder.mkdir(exist_ok=True)
    config = folder / "config.yaml"
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": host},
    }
    config.write_text(json.dumps(settings))
    unit = Unit("registry", cluster.folder / "control", Cgroup(f"{cluster.record.cgroup}/control"))
    unit.start([str(program), "serve", str(config)])
    try:
        wait_for("the registry answers", lambda: not port_is_free(cluster.record.port(_PORT)), explain=unit.log_end)
        yield Registry(host)
    finally:
        unit.stop()
