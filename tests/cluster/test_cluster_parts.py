"""The parts of the test cluster that need no cluster: images, downloads, numbers, and configuration files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import socket
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cluster.binaries import (
    CONTAINERD,
    ETCD,
    FOLDER_VARIABLE,
    GO_MODULE,
    KITS,
    KUBERNETES,
    Kit,
    download_kit,
    find_binaries,
    sources,
)
from cluster.chart_values import give_image
from cluster.errors import ClusterError
from cluster.images import write_image, write_images
from cluster.record import ClusterRecord, free_slot, load_record, port_is_free
from cluster.waiting import wait_for

RECORD = ClusterRecord("dev", 3, "192.0.2.7").with_node("p4d", "p4d.24xlarge").with_node("bare", "")


def image(folder: Path) -> bytes:
    """An archive of a small image."""
    write_image(
        folder / "image.tar",
        "localhost/thing:1",
        {"usr/bin/thing": b"program"},
        links={"bin/thing": "/usr/bin/thing"},
        folders=("bin", "tmp", "usr", "usr/bin"),
        entrypoint=["/bin/thing"],
    )
    return (folder / "image.tar").read_bytes()


def test_an_image_names_itself_and_every_blob_is_what_its_digest_says(tmp_path: Path) -> None:
    files = _files_of(image(tmp_path))
    (manifest,) = json.loads(files["index.json"])["manifests"]

    assert manifest["annotations"]["io.containerd.image.name"] == "localhost/thing:1"
    for name, content in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    described = json.loads(_blob(files, manifest))
    layer = gzip.decompress(_blob(files, described["layers"][0]))
    config = json.loads(_blob(files, described["config"]))
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]
    assert config["config"]["Entrypoint"] == ["/bin/thing"]


def test_images_without_a_compiler_are_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("TRANCHE_CACHE_DIR", str(tmp_path))
    with pytest.raises(ClusterError, match="cannot run the C compiler 'no-such-compiler'") as raised:
        write_images(tmp_path)
    assert "CC" in raised.value.hint


def test_an_image_holds_what_was_put_in_with_parents_before_children(tmp_path: Path) -> None:
    files = _files_of(image(tmp_path))
    (manifest,) = json.loads(files["index.json"])["manifests"]
    layer = gzip.decompress(_blob(files, json.loads(_blob(files, manifest))["layers"][0]))

    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert tar.getnames() == ["bin", "tmp", "usr", "usr/bin", "usr/bin/thing", "bin/thing"]
        assert tar.getmember("tmp").mode == 0o1777
        assert tar.getmember("usr/bin/thing").mode & 0o111
        assert tar.getmember("bin/thing").linkname == "/usr/bin/thing"


def test_the_same_image_is_the_same_bytes(tmp_path: Path) -> None:
    assert image(tmp_path) == image(tmp_path)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no official builds for this processor")
@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.name)
def test_a_release_is_unpacked_into_programs(kit: Kit, tmp_path: Path) -> None:
    download_kit(kit, tmp_path, _release(kit))

    assert {path.name for path in tmp_path.iterdir()} == set(kit.programs)
    for name in kit.programs:
        assert (tmp_path / name).read_bytes() == name.encode()
        assert (tmp_path / name).stat().st_mode & 0o111


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no official builds for this processor")
@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.name)
def test_a_file_that_was_changed_on_the_way_is_refused(kit: Kit, tmp_path: Path) -> None:
    honest = _release(kit)

    def changed(url: str) -> bytes:
        return honest(url) if "sha256" in url.lower() else honest(url) + b"!"

    with pytest.raises(ClusterError, match="checksum"):
        download_kit(kit, tmp_path, changed)
    assert list(tmp_path.iterdir()) == []


def test_every_pinned_program_is_a_tool_of_the_module_that_builds_it() -> None:
    text = (GO_MODULE.folder / "go.mod").read_text()

    for kit in KITS:
        assert kit.version.startswith("v")
        for package in kit.programs.values():
            assert f"\t{package}\n" in text


def test_a_folder_with_older_programs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(version: str) -> None:
        for name in KUBERNETES.programs:
            (tmp_path / name).write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
            (tmp_path / name).chmod(0o755)

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("TRANCHE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for kit, version in ((ETCD, "3.6.1"), (CONTAINERD, "2.2.0")):
        for name in kit.programs:
            (tmp_path / name).write_text(f"#!/bin/sh\necho {name} {version}\n")
            (tmp_path / name).chmod(0o755)

    put("v1.35.9")
    assert find_binaries() is None
    put("v1.36.0")
    found = find_binaries()
    assert found is not None
    assert found["kubelet"] == str(tmp_path / "kubelet")


def test_clusters_share_no_port_no_subnet_and_no_bridge() -> None:
    other = replace(RECORD, name="other", slot=4)

    def numbers(record: ClusterRecord) -> set[object]:
        ports = {record.port(offset) for offset in range(10)}
        ports |= {record.port(10 + 3 * node.index + i) for node in record.nodes for i in range(3)}
        return {*ports, record.services, record.service_address} | {
            f(node) for node in record.nodes for f in (record.subnet, record.bridge)
        }

    assert numbers(RECORD).isdisjoint(numbers(other))
    assert len(numbers(RECORD)) == 10 + 2 + 3 * 2 + 2 * 2


def test_a_slot_that_is_taken_listened_on_or_routed_is_not_given_again() -> None:
    taken = [replace(RECORD, slot=0)]
    listening = replace(RECORD, slot=1).port(9)
    routes = "default via 192.0.2.1 dev eth0\n10.202.1.0/24 dev trn2n1 proto kernel scope link src 10.202.1.1\n"

    assert free_slot(taken, routes, lambda port: port != listening) == 3
    services = "    inet 10.163.0.1/32 scope host lo\n"
    assert free_slot(taken, routes + services, lambda port: port != listening) == 4
    assert free_slot([], "", lambda port: True) == 0
    with pytest.raises(ClusterError):
        free_slot([], "", lambda port: False)


def test_a_port_is_free_until_somebody_listens_on_it() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        port = busy.getsockname()[1]
        busy.listen()
        assert not port_is_free(port)
    assert port_is_free(port)


def test_a_record_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    record = replace(RECORD, owner=(12, 345), time_scale=0.5)
    record.save(tmp_path)

    assert load_record(tmp_path) == record
    (tmp_path / "cluster.json").write_text('{"name": "dev"')
    assert load_record(tmp_path) is None


@pytest.mark.parametrize("name", ["p4d", "UPPER", "", "-x", "a" * 25])
def test_a_node_name_that_is_taken_or_none_is_refused(name: str) -> None:
    with pytest.raises(ClusterError):
        RECORD.with_node(name, "")


def test_a_wait_that_ends_in_vain_says_what_was_waited_for_and_what_was_seen() -> None:
    def probe() -> str:
        raise ClusterError("two of three")

    with pytest.raises(ClusterError, match=r"^the thing: not within 0 s; at last: two of three\nthe log$"):
        wait_for("the thing", probe, timeout=0, explain=lambda: "the log")


def _files_of(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member))}


def _blob(files: dict[str, bytes], descriptor: dict[str, str]) -> bytes:
    return files[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]


def _release(kit: Kit) -> Callable[[str], bytes]:
    """The files of a release, each program's content being its name."""
    published: dict[str, bytes] = {}
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    for source in sources(kit, architecture):
        name = source.url.rsplit("/", 1)[1]
        content = _archive(kit) if name.endswith(".tar.gz") else name.encode()
        published[source.url] = content
        checksum = hashlib.sha256(content).hexdigest()
        alone = source.checksums.endswith(".sha256")
        published[source.checksums] = (
            checksum.encode() if alone else f"{'0' * 64}  other\n{checksum}  {name}\n".encode()
        )
    return published.__getitem__


def _archive(kit: Kit) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as tar:
        for name in kit.programs:
            entry = tarfile.TarInfo(f"release/bin/{name}")
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))
    return output.getvalue()


def test_an_image_that_was_not_made_of_these_sources_is_missed_aloud() -> None:
    """Else `kubectl rollout status` waits without end for pods that have no image."""
    assert "`make image` has not made it" in give_image((), None)
