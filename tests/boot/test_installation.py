"""The cut at boot as a node's agent installs it: the unit and what it asks for come, stay, and go without a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.boot.unit import MARK, UNIT, NodeInstallation
from tranche.core.errors import UsageError
from tranche.core.partition import parse_boot_settings, parse_partition

ELEMENTS = st.sampled_from(["19", "1g.5gb", "3*19", "2*3g.20gb", " 14 "])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folders of a host that an agent has mounted, with a unit of the host's own."""
    units = tmp_path / "host" / "etc" / "systemd" / "system"
    (units / "multi-user.target.wants").mkdir(parents=True)
    (units / "multi-user.target.wants" / "other.service").symlink_to("../other.service")
    (units / "other.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "host" / "etc" / "default").mkdir()
    return tmp_path / "host"


def installation(root: Path, partition: str = "7*1g.5gb") -> NodeInstallation:
    return NodeInstallation(root, "/usr/bin/tranche", partition, 120.0)


def files(root: Path) -> dict[str, str]:
    """Every file and link under the root, with its text or aim."""
    found = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    return {
        str(path.relative_to(root)): str(path.readlink()) if path.is_symlink() else path.read_text() for path in found
    }


def test_what_is_installed_goes_without_a_trace(root: Path) -> None:
    before = files(root)
    said = installation(root).install()
    assert "written and enabled" in said
    assert "ExecStart=/usr/bin/tranche boot\n" in files(root)[f"etc/systemd/system/{UNIT}"]
    assert files(root)["etc/default/mig"] == f"{MARK}MIG_PARTITION=7*1g.5gb\n"
    installed = files(root)
    assert "up to date" in installation(root).install()
    assert files(root) == installed
    assert "/etc/default/mig" in installation(root).remove()
    assert files(root) == before
    assert installation(root).remove() == "nothing to remove"


def test_a_file_that_no_agent_made_stays_whatever_is_asked(root: Path) -> None:
    own = root / "etc" / "default" / "mig"
    own.write_text("MIG_PARTITION=19\n")
    assert "the agent did not write it" in installation(root).install()
    installation(root).remove()
    assert own.read_text() == "MIG_PARTITION=19\n"
    assert installation(root, "").install()
    assert own.read_text() == "MIG_PARTITION=19\n"


def test_the_file_follows_the_value_and_goes_when_nothing_is_asked_any_more(root: Path) -> None:
    installation(root).install()
    replace(installation(root), partition="all-balanced").install()
    assert files(root)["etc/default/mig"].endswith("MIG_PARTITION=all-balanced\n")
    assert "the settings no longer specify a partition" in installation(root, "").install()
    assert "etc/default/mig" not in files(root)
    assert f"etc/systemd/system/{UNIT}" in files(root)


def test_a_unit_that_would_close_a_circle_is_not_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # as in the agent's image, which has no systemd-analyze
    units = root / "usr" / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    (units / "nvidia-kmod-load.service").write_text("[Unit]\nAfter=kubelet.service\n")
    with pytest.raises(UsageError, match="ordering cycle"):
        installation(root).install()
    assert f"etc/systemd/system/{UNIT}" not in files(root)
    assert "etc/default/mig" not in files(root)


@given(st.lists(ELEMENTS, min_size=1, max_size=6), st.sampled_from(["", "\n", " \t"]))
def test_the_file_is_read_back_as_what_was_asked(
    tmp_path_factory: pytest.TempPathFactory, elements: list[str], blank: str
) -> None:
    folder = tmp_path_factory.mktemp("host")
    partition = f",{blank}".join(elements)
    installation(folder, partition).install()
    read = parse_boot_settings((folder / "etc" / "default" / "mig").read_text(), "mig").wanted
    assert read == parse_partition("".join(partition.split()))
