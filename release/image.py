"""The agent's image: built once for each state of its sources, and kept in the cache with a list of what is inside."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from release.base_image import ensure_base
from release.builders import find_builder
from release.errors import ImageBroken
from release.image_sources import ROOT, digest, sources, version
from release.oci_archive import OciArchive
from release.one_at_a_time import one_at_a_time
from release.progress import Say
from release.revision import last_change
from release.sbom import bill_of_materials
from tranche_simulator.build import cache_directory

NAME = "tranche-agent"
BYTES_MAX = 75_000_000
"""What a registry may have to hand out for it, compressed."""
_KEPT = 8
_ARCHIVE, _MATERIALS, _FACTS = "image.tar", "image.cdx.json", "facts.json"


@dataclass(frozen=True, slots=True)
class MadeImage:
    """The image as an OCI archive, and its bill of materials. `size` is in bytes, compressed; `base` is what it stands on."""

    folder: Path
    name: str
    digest: str
    size: int
    base: str

    @property
    def archive(self) -> Path:
        """The OCI archive. The name in it is the one that `tranche-agent:VERSION` in a pod stands for."""
        return self.folder / _ARCHIVE

    @property
    def materials(self) -> Path:
        """The CycloneDX document."""
        return self.folder / _MATERIALS


def full_name() -> str:
    """What `tranche-agent:VERSION` in a pod stands for."""
    return f"docker.io/library/{NAME}:{version()}"


def made_image() -> MadeImage | None:
    """The image of the sources as they are now, if it was built before; nothing is built."""
    return _load(_target())


def make_image(say: Say) -> MadeImage:
    """The image of the sources as they are now, built unless it was built before.

    Raises:
        ReleaseError: there is no builder or no base.
        ImageBroken: a step of the Dockerfile fails, or the image is too big.
    """
    target = _target()
    if (made := _load(target)) is not None:
        return made
    with one_at_a_time("the agent's image", say):
        if (made := _load(target)) is not None:
            return made
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="new-") as folder:
            image = _build(Path(folder), say)
            if image.size > BYTES_MAX:
                raise ImageBroken(
                    f"the image is {image.size / 1e6:.1f} MB compressed, and at most {BYTES_MAX / 1e6:.0f} are wanted"
                )
            shutil.rmtree(target, ignore_errors=True)
            Path(folder).rename(target)
            Path(folder).mkdir()
        _forget_old(target.parent)
    made = _load(target)
    assert made is not None
    return made


def deliver(image: MadeImage, folder: Path = ROOT / "build") -> tuple[Path, Path]:
    """Put the archive and the bill of materials where a person looks for them; their places."""
    folder.mkdir(exist_ok=True)
    stem = f"{NAME}-{version()}"
    places = folder / f"{stem}.tar", folder / f"{stem}.cdx.json"
    for source, place in zip((image.archive, image.materials), places, strict=True):
        shutil.copyfile(source, place)
    return places


def revision() -> str:
    """The revision that last changed what the image is made of; empty where git cannot tell."""
    return last_change(*sources()) or ""


def _target() -> Path:
    return _cache() / "built" / digest(ROOT, revision())


def _build(folder: Path, say: Say) -> MadeImage:
    builder = find_builder(_cache() / "storage", say)
    base = ensure_base(builder, say)
    name = f"localhost/{NAME}:{version()}"
    say(f"building {NAME}:{version()} on {base} with {builder.name}")
    builder.build(ROOT, name, {"PYTHON_IMAGE": base, "TRANCHE_COMMIT": revision()}, say)
    unnamed = folder / "unnamed.tar"
    builder.save(name, unnamed)
    archive = OciArchive(unnamed).named(full_name(), folder / _ARCHIVE)
    unnamed.unlink()
    (folder / _MATERIALS).write_text(bill_of_materials(archive, NAME, version()))
    facts = {"name": full_name(), "digest": archive.digest(), "size": archive.size(), "base": base}
    (folder / _FACTS).write_text(json.dumps(facts, indent=2) + "\n")
    return MadeImage(folder, full_name(), archive.digest(), archive.size(), base)


def _load(folder: Path) -> MadeImage | None:
    try:
        facts = json.loads((folder / _FACTS).read_text())
    except FileNotFoundError:
        return None
    os.utime(folder)
    return MadeImage(folder, facts["name"], facts["digest"], facts["size"], facts["base"])


def _forget_old(built: Path) -> None:
    """Keep the images that were used last."""
    folders = sorted(built.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def _cache() -> Path:
    return cache_directory() / "image"
