"""Files that people name for output: what stands there is neither taken away from others nor left half written."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tranche.node.state.state_file import write_output

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@needs_root
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = tmp_path / "null"
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    write_output(null, b"gone")
    assert stat.S_ISCHR(null.lstat().st_mode)
    assert names(tmp_path) == ["null"]


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    write_output(link, b"new")
    assert link.is_symlink()
    assert (file.read_text(), names(tmp_path / "far")) == ("new", ["file"])


def test_a_link_that_leads_nowhere_yet_gets_its_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    write_output(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "new"


@needs_root
def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_text("old")
    link.symlink_to(precious)
    os.lchown(link, 65534, 65534)
    write_output(link, b"new")
    assert precious.read_text() == "old"
    assert not link.is_symlink()
    assert link.read_text() == "new"


@pytest.mark.parametrize("name", ["/proc/self/fd/1", "/dev/stdout", "/dev/fd/1"])
def test_a_name_of_an_open_file_stays(tmp_path: Path, name: str) -> None:
    """By a link of our own, as /dev/stdout is one: what fails here must not take that from the machine."""
    link, out = tmp_path / "stdout", tmp_path / "out"
    link.symlink_to(name)
    code = "import sys, pathlib, tranche.node.state.state_file as o; o.write_output(pathlib.Path(sys.argv[1]), b'new')"
    with open(out, "wb") as stdout:
        subprocess.run([sys.executable, "-c", code, link], stdout=stdout, check=True)
        assert os.fstat(stdout.fileno()).st_ino == out.stat().st_ino
    assert link.is_symlink()
    assert out.read_text() == "new"
    assert names(tmp_path) == ["out", "stdout"]


def test_what_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with no_file_longer_than(1000), pytest.raises(OSError, match="File too large"):
        write_output(file, b"x" * 5000)
    assert (file.read_text(), names(tmp_path)) == ("old", ["file"])


def test_a_file_keeps_its_mode_and_a_new_one_can_be_read_by_everybody(tmp_path: Path) -> None:
    secret, new = tmp_path / "secret", tmp_path / "new"
    secret.touch(0o600)
    for path in (secret, new):
        write_output(path, b"x")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (secret, new)] == [0o600, 0o644]
