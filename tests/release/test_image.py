"""The agent's image: what it is made of, how its archive is read, and what is in the one that a builder makes here."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import marshal
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from release.errors import ImageBroken, ReleaseError
from release.go_build import go_summary
from release.image import BYTES_MAX, MadeImage, full_name, made_image, make_image, revision
from release.image_sources import ROOT, digest, source_files, sources, version
from release.oci_archive import OciArchive
from release.progress import run_with_progress
from release.revision import last_change
from release.sbom import bill_of_materials

from tests.support import agent_image
from tests.support.agent_image import image_or_skip

_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
PACKAGES = "opt/tranche/lib/python3.13/site-packages"
_COMMIT = f"{PACKAGES}/tranche/commit.txt"
_BYTE_CODE = f"{PACKAGES}/tranche/__pycache__/__init__.cpython-313.pyc"


@pytest.fixture(scope="session")
def image() -> MadeImage:
    """The image of this checkout; it is built, which takes a minute the first time."""
    return image_or_skip()


def test_sources_that_make_no_image_fail_the_tests_and_a_machine_without_a_builder_skips_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error, seen in (
        (ImageBroken("a step fails"), ImageBroken),
        (ReleaseError("no builder"), pytest.skip.Exception),
    ):
        monkeypatch.setattr(agent_image, "make_image", Mock(side_effect=error))
        with pytest.raises(seen):
            image_or_skip()


@pytest.fixture(scope="session")
def files(image: MadeImage) -> dict[str, bytes]:
    """Every file of it, by path, without its content."""
    return OciArchive(image.archive).files()


@pytest.fixture(scope="session")
def contents(image: MadeImage) -> dict[str, bytes]:
    """What two of its files hold: to read one takes seconds."""
    return OciArchive(image.archive).files((_COMMIT, _BYTE_CODE))


@pytest.mark.image
def test_it_is_small_enough_and_starts_the_agent_from_its_own_environment(image: MadeImage) -> None:
    archive = OciArchive(image.archive)
    config = archive.config()["config"]

    assert archive.size() == image.size <= BYTES_MAX
    assert archive.digest() == image.digest
    assert [*config["Entrypoint"], *config["Cmd"]] == ["tranche", "agent"]
    assert "PATH=/opt/tranche/bin:" in " ".join(config["Env"])


@pytest.mark.image
def test_its_labels_say_what_it_is_and_what_it_stands_on(image: MadeImage) -> None:
    labels = OciArchive(image.archive).config()["config"]["Labels"]
    said = {
        name.rpartition(".")[2]: text for name, text in labels.items() if name.startswith("org.opencontainers.image.")
    }

    assert said["title"] == "tranche-agent"
    assert said["version"] == version()
    assert said["licenses"] == "Apache-2.0"
    assert said["revision"] == revision()
    assert said["name"] == image.base


@pytest.mark.image
def test_it_knows_the_revision_that_it_was_made_from(contents: dict[str, bytes]) -> None:
    if not revision():
        pytest.skip("git does not tell a revision")
    assert contents[_COMMIT] == f"{revision()}\n".encode()


@pytest.mark.image
def test_it_holds_no_compiler_no_sources_of_the_simulator_and_no_second_pip(files: dict[str, bytes]) -> None:
    names = {path.rpartition("/")[2] for path in files}

    assert not names & {"gcc", "cc", "ld", "make", "hatchling"}
    assert not [path for path in files if path.startswith(f"{PACKAGES}/pip/")]
    assert not [path for path in files if path.startswith(f"{PACKAGES}/tranche_simulator/native")]
    assert f"{PACKAGES}/tranche_simulator/boards.json" in files
    assert not [path for path in files if path.startswith(("src/", "build/"))]


@pytest.mark.image
def test_every_module_has_byte_code_that_is_trusted_without_its_source(
    files: dict[str, bytes], contents: dict[str, bytes]
) -> None:
    sources = [path for path in files if path.startswith(f"{PACKAGES}/tranche/") and path.endswith(".py")]
    code = contents[_BYTE_CODE]

    assert len(sources) > 100
    for path in sources:
        folder, _, name = path.rpartition("/")
        assert f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-313.pyc" in files
    assert int.from_bytes(code[4:8], "little") == 0b01, "hash-based, not checked"


@pytest.mark.image
def test_its_bill_of_materials_names_every_distribution_with_the_locked_version(image: MadeImage) -> None:
    bill = json.loads(image.materials.read_text())
    named = {each["name"].lower().replace("_", "-"): each["version"] for each in bill["components"]}
    locked = _pins(ROOT / "requirements-image.lock")

    for package in ("grpcio", "httpx2", "protobuf", "click", "pyyaml"):
        assert named[package] == locked[package]
    assert named["tranche-gpu"] == version()
    assert [each for each in bill["components"] if each["purl"].startswith("pkg:deb/debian/libc6@")]
    assert bill["metadata"]["component"]["purl"].startswith(f"pkg:oci/tranche-agent@{image.digest.replace(':', '%3A')}")


@pytest.mark.image
def test_a_second_call_builds_nothing(image: MadeImage) -> None:
    said: list[str] = []

    assert make_image(said.append) == image == made_image()
    assert said == []


def test_the_dockerfile_copies_only_what_may_enter_and_has_the_packages_version() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE) for word in line.split()[:-1]
    ]
    admitted = [str(file.relative_to(ROOT)) for file in source_files()]

    assert copied
    for word in copied:
        assert [path for path in admitted if path == word or path.startswith(f"{word}/")], word
    assert f'image.version="{version()}"' in dockerfile
    assert not [path for path in admitted if path.startswith((".git", "tests", "docs", "cluster"))]


def test_the_images_locks_pin_what_the_project_needs_in_the_versions_that_are_tested() -> None:
    tested, pinned = _pins(ROOT / "requirements.lock"), _pins(ROOT / "requirements-image.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {
        re.split(r"[<>=]", each)[0]
        for each in (*project["dependencies"], *project["optional-dependencies"]["kubernetes"])
    }

    assert needed <= pinned.keys()
    assert pinned.items() <= tested.items()
    assert _pins(ROOT / "requirements-build.lock").items() <= tested.items()


def test_the_revision_of_an_image_is_that_of_its_sources(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def last() -> str | None:
        return last_change(*sources(tmp_path), root=tmp_path)

    _checkout(tmp_path)
    assert last() is None
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=sources")
    first = git("rev-parse", "HEAD")
    assert last() == first
    (tmp_path / "notes.md").write_text("of no use to the image\n")
    assert last() == first
    git("add", ".")
    git("commit", "--quiet", "--message=notes")
    assert last() == first
    (tmp_path / "src" / "a.py").write_text("b = 2\n")
    assert last() == f"{first}-dirty"
    git("commit", "--quiet", "--all", "--message=change")
    assert last() == git("rev-parse", "HEAD") != first


def test_the_digest_of_the_sources_follows_every_file_and_no_byte_code(tmp_path: Path) -> None:
    _checkout(tmp_path)
    before = digest(tmp_path)
    (tmp_path / "src/__pycache__").mkdir()
    (tmp_path / "src/__pycache__/a.pyc").write_bytes(marshal.dumps(1))
    assert digest(tmp_path) == before

    seen = {before, digest(tmp_path, "another base")}
    for path, text in (("src/a.py", "b = 1\n"), ("Dockerfile", "FROM y\n"), ("src/new.py", "")):
        (tmp_path / path).write_text(text)
        seen.add(digest(tmp_path))
    (tmp_path / "src/a.py").chmod(0o755)
    assert len({*seen, digest(tmp_path)}) == 6


def test_an_archive_is_read_as_the_last_layer_leaves_it(tmp_path: Path) -> None:
    base = {"etc/a": b"one", "etc/b": b"two", "opt/gone/c": b"three"}
    archive = _archive(tmp_path, base, {"etc/a": b"new", "etc/.wh.b": b"", "opt/.wh.gone": b""})

    assert archive.files(("etc/a", "etc/b", "c")) == {"etc/a": b"new"}
    assert set(archive.files()) == {"etc/a"}


def test_a_named_archive_is_compressed_and_every_blob_is_what_its_digest_says(tmp_path: Path) -> None:
    plain = _archive(tmp_path, {"etc/a": b"one" * 10_000})

    named = plain.named(full_name(), tmp_path / "named.tar")

    assert named.size() < plain.size() / 10
    assert named.files(("etc/a",)) == plain.files(("etc/a",))
    assert named.config() == plain.config()
    with tarfile.open(named.path) as tar:
        blobs = {member.name: file.read() for member in tar if (file := tar.extractfile(member))}
    (entry,) = json.loads(blobs["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == f"docker.io/library/tranche-agent:{version()}"
    for name, content in blobs.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    (layer,) = named.layers()
    assert hashlib.sha256(gzip.decompress(blobs[f"blobs/{layer.replace(':', '/')}"])).hexdigest() in plain.layers()[0]


def test_a_bill_of_materials_has_what_is_installed_and_not_what_was_removed(tmp_path: Path) -> None:
    status = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.41-12\n\n"
    status += "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
    archive = _archive(
        tmp_path,
        {"var/lib/dpkg/status": status.encode(), "usr/lib/os-release": b'ID=debian\nVERSION_ID="13"\n'},
        {"a/Some_Thing-1.dist-info/METADATA": b"Name: Some_Thing\nVersion: 1.0\nLicense-Expression: MIT\n\ntext\n"},
    )

    bill = json.loads(bill_of_materials(archive, "thing", "1"))

    assert [each["purl"] for each in bill["components"]] == [
        "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13",
        "pkg:pypi/some-thing@1.0",
    ]
    assert bill["components"][1]["licenses"] == [{"expression": "MIT"}]


def test_a_long_command_is_told_of_while_it_runs_and_its_output_comes_back(tmp_path: Path) -> None:
    said: list[str] = []
    go_on = tmp_path / "go-on"
    script = 'echo one; echo two >&2; until [ -e "$0" ]; do sleep 0.01; done; exit 3'

    def say(line: str) -> None:
        said.append(line)
        go_on.touch()

    done = run_with_progress(["sh", "-c", script, str(go_on)], "waiting", say, period=0.05)

    assert (done.returncode, sorted(done.stdout.split())) == (3, ["one", "two"])
    assert said[0].startswith("waiting: 0 s")


def test_how_far_a_build_of_go_is_follows_what_it_prints() -> None:
    printed = ["go: downloading example.org/a v1.0.0\n", "go: downloading example.org/b v1.0.0\n"]

    assert go_summary([]) == "looking for the modules"
    assert go_summary(printed) == "2 modules fetched"
    assert go_summary([*printed, "internal/cpu\n", "example.org/a\n"]) == "2 packages compiled, example.org/a last"


def _pins(lock: Path) -> dict[str, str]:
    return dict(_PIN.findall(lock.read_text()))


def _checkout(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src/a.py").write_text("a = 1\n")
    (folder / "Dockerfile").write_text("FROM x\n")
    (folder / ".dockerignore").write_text("*\n!src\n")
    (folder / "secret").write_text("not read\n")


def _archive(folder: Path, *layers: dict[str, bytes]) -> OciArchive:
    """An archive of such layers, uncompressed, as docker saves them."""
    tars = [_tar(layer) for layer in layers]
    config = json.dumps({"rootfs": {"diff_ids": [_digest(tar) for tar in tars]}, "config": {}}).encode()
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "config": {"digest": _digest(config), "size": len(config)},
        "layers": [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": _digest(tar), "size": len(tar)}
            for tar in tars
        ],
    }
    encoded = json.dumps(manifest).encode()
    index = {
        "manifests": [
            {"digest": _digest(encoded), "size": len(encoded)},
            {"digest": "sha256:0", "size": 1, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}},
        ]
    }
    blobs = {f"blobs/{_digest(blob).replace(':', '/')}": blob for blob in (config, encoded, *tars)}
    path = folder / "image.tar"
    path.write_bytes(_tar({"index.json": json.dumps(index).encode(), **blobs}))
    return OciArchive(path)


def _tar(files: dict[str, bytes]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return output.getvalue()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()
