"""What doctor says of the NVIDIA container toolkit of a cluster's node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tranche.node.health.checkup import Status, check_container_toolkit

OPTION = "accept-nvidia-visible-devices-envvar-when-unprivileged"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", Status.WARN),
        (f"{OPTION} = true\n", Status.WARN),
        (f"{OPTION} = false\n", Status.PASS),
        (f"# {OPTION} = false\n[nvidia-container-cli]\n{OPTION} = false\n", Status.WARN),
        ("a = \n", Status.WARN),
    ],
)
def test_a_nodes_runtime_that_heeds_the_variable_of_any_container_is_named(
    tmp_path: Path, text: str, status: Status
) -> None:
    (tmp_path / "config.toml").write_text(text)
    (finding,) = check_container_toolkit(tmp_path / "config.toml", tmp_path)
    assert finding.status is status


def test_of_a_machine_without_kubelet_or_toolkit_nothing_is_said(tmp_path: Path) -> None:
    assert not [*check_container_toolkit(tmp_path / "config.toml", tmp_path)]
    (tmp_path / "config.toml").touch()
    assert not [*check_container_toolkit(tmp_path / "config.toml", tmp_path / "none")]
