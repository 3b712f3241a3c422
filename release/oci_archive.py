"""Reads an image's OCI archive: what it weighs, how it is set up, and the files in its layers. Writes one, with its name."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
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
        blobs = [self._blob(manifest["config"]["digest"])]
        for layer in manifest["layers"]:
            content = self._blob(layer["digest"])
            if layer["mediaType"].endswith(".tar"):
                content = gzip.compress(content, mtime=0)
                layer.update(descriptor(_LAYER, content))
            blobs.append(content)
        write_archive(target, name, manifest, blobs)
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


def one_layer(layer: bytes, architecture: str, command: Mapping[str, object]) -> tuple[dict[str, Any], list[bytes]]:
    """The manifest, and the blobs, of an image of one layer, which is a tar archive. `command` is what it runs, and how."""
    packed = gzip.compress(layer, 1, mtime=0)
    rootfs = {"type": "layers", "diff_ids": [_digest(layer)]}
    config = _json({"architecture": architecture, "os": "linux", "config": command, "rootfs": rootfs})
    described = descriptor("application/vnd.oci.image.config.v1+json", config)
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": [descriptor(_LAYER, packed)]}
    return manifest, [config, packed]


def write_archive(target: Path, name: str, manifest: Mapping[str, Any], blobs: Sequence[bytes]) -> None:
    """Write an image under a name, as containerd, docker and podman read it on import. The same image gives the same bytes."""
    encoded = _json(manifest)
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry = {**descriptor(_MANIFEST, encoded), "annotations": names}
    with tarfile.open(target, "w") as archive:
        add_file(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        add_file(archive, _INDEX, _json({"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": [entry]}))
        for content in dict.fromkeys((*blobs, encoded)):
            add_file(archive, _blob_path(_digest(content)), content)


def descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    """How a manifest or an index names a blob."""
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def add_file(archive: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    """Put a file into a tar archive, as of the year 1970, so that the same content gives the same bytes."""
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()
