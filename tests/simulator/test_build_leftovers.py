"""What processes that were killed while they compiled the simulator left in the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tranche_simulator import compiling


def test_folders_of_killed_compilations_go_and_those_of_running_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned, running = tmp_path / "build-old", tmp_path / "build-new"
    for each in (abandoned, running):
        each.mkdir()
        (each / "part.o").touch()
    os.utime(abandoned, (0, 0))
    monkeypatch.setattr(compiling, "compile_everything", lambda folder: (folder / "done").touch())
    compiling.build_into(tmp_path, tmp_path / "target")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["build-new", "target"]
