"""Reads an image's OCI archive, and gives it its name: what it weighs, how it is set up, and the files in its layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_INDEX = "index.json"
_WHITEOUT = ".wh."
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
# docker puts a statement about the build beside the image.
_ATTESTED = "vnd.docker.reference.type"


@dataclass(frozen=True, slots=True)
class OciArchive:
    """An OCI image layout in a tar archive, with one image in it."""

    path: Path

    def digest(self) -> str:
        """The digest of the image's manifest, as a registry would name it."""
        return str(self._entry()["digest"])

    def size(self) -> int:
        """What is fetched from a registry, in bytes: manifest, configuration and layers as they are in the archive."""
        manifest = self._manifest()
        return int(self._entry()["size"]) + sum(int(each["size"]) for each in (manifest["config"], *manifest["layers"]))

    def config(self) -> dict[str, Any]:
        """The image's configuration: environment, entry point, labels and history."""
        return dict(json.loads(self._blob(self._manifest()["config"]["digest"])))

    def manifest(self) -> bytes:
        """The manifest, byte for byte."""
        return self._blob(self.digest())

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Digest and content of the configuration and of every layer."""
        manifest = self._manifest()
        for each in (manifest["config"], *manifest["layers"]):
            yield each["digest"], self._blob(each["digest"])

    def layers(self) -> list[str]:
        """The digests of its layers, from the base up."""
        return [each["digest"] for each in self._manifest()["layers"]]

    def files(self, wanted: tuple[str, ...] = ()) -> dict[str, bytes]:
        """The content of the files whose path ends as one of `wanted` says; without any, every path, with no content.

        A path has no slash in front. What a later layer replaces or removes is not there.
        """
        found: dict[str, bytes] = {}
        for digest in self.layers():
            with self._open_layer(digest) as layer:
                for member in layer:
                    path = member.name.removeprefix("./")
                    folder, _, name = path.rpartition("/")
                    if name.startswith(_WHITEOUT):
                        gone = f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
                        found = {
                            each: found[each] for each in found if each != gone and not each.startswith(f"{gone}/")
                        }
                    elif not wanted and not member.isdir():
                        found[path] = b""
                    elif member.isfile() and path.endswith(wanted):
                        file = layer.extractfile(member)
                        found[path] = file.read() if file else b""
        return found

    def named(self, name: str, target: Path) -> OciArchive:
        """A copy whose image has this name, as containerd, docker and podman read it on import, with every layer compressed."""
        manifest = self._manifest()
        config = self._blob(manifest["config"]["digest"])
        blobs = {manifest["config"]["digest"]: config}
        for layer in manifest["layers"]:
            content = self._blob(layer["digest"])
            if layer["mediaType"].endswith(".tar"):
                content = gzip.compress(content, mtime=0)
                layer.update(mediaType=_LAYER, size=len(content), digest=_digest(content))
            blobs[layer["digest"]] = content
        encoded = json.dumps(manifest, sort_keys=True).encode()
        entry = {
            "mediaType": _MANIFEST,
            "digest": _digest(encoded),
            "size": len(encoded),
            "annotations": {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": [entry]}
        with tarfile.open(target, "w") as archive:
            _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            _add(archive, _INDEX, json.dumps(index, sort_keys=True).encode())
            for digest, content in (*blobs.items(), (entry["digest"], encoded)):
                _add(archive, _blob_path(str(digest)), content)
        return OciArchive(target)

    def _entry(self) -> dict[str, Any]:
        (entry,) = (
            each
            for each in json.loads(self._read(_INDEX))["manifests"]
            if not each.get("annotations", {}).get(_ATTESTED)
        )
        return dict(entry)

    def _manifest(self) -> dict[str, Any]:
        return dict(json.loads(self._blob(self.digest())))

    def _blob(self, digest: str) -> bytes:
        return self._read(_blob_path(digest))

    def _read(self, path: str) -> bytes:
        with tarfile.open(self.path) as archive:
            file = archive.extractfile(path)
            assert file is not None
            return file.read()

    @contextmanager
    def _open_layer(self, digest: str) -> Iterator[tarfile.TarFile]:
        with tarfile.open(self.path) as archive:
            blob = archive.extractfile(_blob_path(digest))
            assert blob is not None
            with tarfile.open(fileobj=blob, mode="r:*") as layer:
                yield layer


def _blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _add(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
