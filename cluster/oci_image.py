"""Writes container images as OCI image-layout archives, which containerd imports without a registry."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Image:
    """One image with one layer: what it holds and what it runs.

    `files` maps a path in the image to its content (executable), `texts` to a text, `links` to what a symbolic link names.
    """

    name: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()

    def archive(self) -> bytes:
        """The image as a tar archive. The same image gives the same bytes."""
        layer = self._layer()
        packed = gzip.compress(layer, 1, mtime=0)
        config = _json(
            {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": {
                    "Env": [_PATH],
                    "Entrypoint": list(self.entrypoint),
                    "Cmd": list(self.command),
                    "WorkingDir": "/",
                },
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
        )
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
                "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
            }
        )
        # containerd takes the image's name from this annotation.
        named = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
        named["annotations"] = {"io.containerd.image.name": self.name}
        files = {
            "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
            "index.json": _json({"schemaVersion": 2, "manifests": [named]}),
            **{f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}": blob for blob in (config, packed, manifest)},
        }
        output = io.BytesIO()
        with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path, content in files.items():
                _add(tar, path, content, 0o644)
        return output.getvalue()

    def _layer(self) -> bytes:
        output = io.BytesIO()
        with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for folder in self._all_folders():
                entry = _entry(folder, 0o1777 if folder == "/tmp" else 0o755)
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            for path, content in self.files.items():
                _add(tar, path, content, 0o755)
            for path, text in self.texts.items():
                _add(tar, path, text.encode(), 0o644)
            for path, destination in self.links.items():
                entry = _entry(path, 0o777)
                entry.type, entry.linkname = tarfile.SYMTYPE, destination
                tar.addfile(entry)
        return output.getvalue()

    def _all_folders(self) -> list[str]:
        """Every folder that is named or that a file lies in, parents first."""
        folders = set(self.folders)
        for path in (*self.files, *self.texts, *self.links, *self.folders):
            folders |= {str(parent) for parent in Path(path).parents}
        return sorted(folders - {"/"})


def _entry(path: str, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.mode = mode
    return entry


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = _entry(path, mode)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}
