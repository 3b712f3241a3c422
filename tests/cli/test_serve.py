"""`tranche serve install` and `remove`: the unit's two files. What the service does is in tests/local/test_service.py."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import in_process
from tranche.cli import serve as service
from tranche.core.errors import UsageError

UNIT = "etc/systemd/system/tranche.service"
LINK = "etc/systemd/system/multi-user.target.wants/tranche.service"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The root folder of an image that has a program."""
    program = tmp_path / "opt/tranche"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


def serve(*arguments: str, code: int = 0) -> str:
    done = in_process.run(("serve", *arguments), {})
    assert done.code == code, done.stderr
    assert not done.fault, done.fault
    return done.stderr


def files(root: Path) -> set[str]:
    return {str(each.relative_to(root)) for each in root.rglob("*") if each.is_symlink() or each.is_file()}


def test_the_unit_is_written_enabled_and_removed_again(image: Path) -> None:
    before = files(image)
    arguments = ("--root", str(image), "--program", "/opt/tranche")
    assert "written and enabled" in serve("install", *arguments)
    assert files(image) == {*before, UNIT, LINK}
    assert "ExecStart=/opt/tranche serve\n" in (image / UNIT).read_text()
    assert "up to date" in serve("install", *arguments)
    assert "removed" in serve("remove", "--root", str(image))
    assert files(image) == before
    assert "not installed" in serve("remove", "--root", str(image))


def test_the_unit_serves_the_folder_that_the_command_names(image: Path) -> None:
    serve("install", "--state-dir", "/srv/a b", "--root", str(image), "--program", "/opt/tranche")
    assert 'ExecStart=/opt/tranche --state-dir "/srv/a b" serve\n' in (image / UNIT).read_text()


def test_a_masked_unit_stays(image: Path) -> None:
    (image / UNIT).parent.mkdir(parents=True)
    (image / UNIT).symlink_to("/dev/null")
    said = serve("install", "--root", str(image), "--program", "/opt/tranche", code=UsageError.exit_code)
    assert "systemctl unmask tranche.service" in said
    assert (image / UNIT).is_symlink()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze on this machine")
def test_systemd_understands_the_unit(image: Path) -> None:
    serve("install", "--root", str(image), "--program", "/opt/tranche")
    units = image / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for each in ("sysinit", "basic", "shutdown", "multi-user"):
        (units / f"{each}.target").write_text("[Unit]\nDescription=stand-in\n")
    verify = ["systemd-analyze", "verify", "--man=no", f"--root={image}", "tranche.service"]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert "tranche.service" not in done.stderr, done.stderr


def test_a_service_below_a_closed_folder_warns_that_users_cannot_execute_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr("sys.executable", str(closed / "python"))
    service._warn_of_closed_folders()
    assert "users cannot execute Tranche" in capsys.readouterr().err
