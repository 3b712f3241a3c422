"""A compressed archive of files made in memory: listed first, then written in one piece, readable only by its owner."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tranche.core.errors import OutputUnwritable


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of an archive; `about` briefly describes its content."""

    path: str
    about: str
    content: bytes

    def document(self) -> dict[str, Any]:
        """The file's entry in a list of contents."""
        digest = hashlib.sha256(self.content).hexdigest()
        return {"path": self.path, "about": self.about, "bytes": len(self.content), "sha256": digest}


def write_archive(target: Path, folder: str, entries: Sequence[ArchiveFile], *, now: float) -> None:
    """Write a .tar.gz with the files in `folder`, dated `now`, in seconds since the epoch.

    Raises OutputUnwritable when the target exists or cannot be written; then nothing is left behind.
    """
    if target.exists():
        raise OutputUnwritable(f"{target} exists already", hint="name another file with --output")
    try:
        descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=".tranche-bundle-")
        try:
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for each in entries:
                    member = tarfile.TarInfo(f"{folder}/{each.path}")
                    member.size, member.mtime, member.mode = len(each.content), int(now), 0o600
                    archive.addfile(member, io.BytesIO(each.content))
            os.rename(draft, target)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputUnwritable(
            f"cannot write {target}: {error.strerror}", hint="name a file in another folder with --output"
        ) from error
