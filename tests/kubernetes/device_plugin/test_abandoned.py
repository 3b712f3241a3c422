"""Which resources a node counts though nobody serves them, and when they are due."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.device_plugin.device_list import SETTLE_SECONDS, AbandonedResourceTracker, counted_elsewhere
from tranche.kubernetes.device_plugin.endpoints import served_on
from tranche.kubernetes.node.resources import is_device_resource

GPU, SEVENTH, WHOLE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-7g.40gb"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("nvidia.com/mig-1g.10gb.me", True),
        ("nvidia.com/mig-1g.24gb.me.all", True),
        ("nvidia.com/mig-2g.48gb.gfx", True),
        ("nvidia.com/mig-1g.24gb-me", True),
        ("nvidia.com/mig-3g.20gb.shared", True),
        ("nvidia.com/mig-strategy", False),
        ("nvidia.com/mig-1c.3g.20gb", False),
        ("nvidia.com/pgpu", False),
        ("nvidia.com/gpu-reserved", False),
        ("nvidia.com/GA100_A100_PCIE_40GB", False),
        ("example.com/gpu", False),
        ("example.com/nvidia.com/gpu", False),
        ("cpu", False),
    ],
)
def test_which_names_are_gpus_and_slices(name: str, expected: bool) -> None:
    assert is_device_resource(name) is expected


@pytest.mark.parametrize(
    ("capacity", "allocatable", "served", "expected"),
    [
        ({GPU: "8"}, {GPU: "8"}, {GPU}, set()),
        ({GPU: "8", WHOLE: "8"}, {GPU: "8", WHOLE: "8"}, {GPU}, {WHOLE}),
        ({WHOLE: "8"}, {WHOLE: "0"}, {GPU}, {WHOLE}),
        ({}, {WHOLE: "8"}, {GPU}, {WHOLE}),
        ({WHOLE: "0", SEVENTH: "0"}, {WHOLE: "0"}, {GPU}, set()),
        ({GPU: "8", SEVENTH: "56"}, {}, set(), {GPU, SEVENTH}),
        ({"cpu": "2", "example.com/gpu": "4", "nvidia.com/pgpu": "1"}, {"memory": "1Ki"}, set(), set()),
    ],
)
def test_what_is_counted_and_not_served(
    capacity: dict[str, str], allocatable: dict[str, str], served: set[str], expected: set[str]
) -> None:
    assert counted_elsewhere(KubeNode("n", capacity=capacity, allocatable=allocatable), served) == expected


def test_a_resource_is_due_when_it_has_been_counted_without_a_break() -> None:
    seen = AbandonedResourceTracker().look({WHOLE}, 100)
    assert not seen.due(100 + SETTLE_SECONDS - 1)
    later = seen.look({WHOLE, SEVENTH}, 110)
    assert later.due(100 + SETTLE_SECONDS) == {WHOLE}
    assert later.due(110 + SETTLE_SECONDS) == {WHOLE, SEVENTH}
    back = later.look({SEVENTH}, 112).look({WHOLE, SEVENTH}, 114)
    assert back.due(110 + SETTLE_SECONDS) == {SEVENTH}, "a count that was right in between begins anew"


def test_what_somebody_serves_is_looked_at_again_only_later() -> None:
    seen = AbandonedResourceTracker().look({WHOLE, SEVENTH}, 100)
    protected = seen.spare({WHOLE}, 100 + SETTLE_SECONDS)
    assert protected.due(100 + SETTLE_SECONDS) == {SEVENTH}
    assert protected.due(100 + 2 * SETTLE_SECONDS) == {WHOLE, SEVENTH}


def test_a_plugin_lives_where_somebody_accepts(tmp_path: Path) -> None:
    own, other = tmp_path / "tranche-gpu.sock", tmp_path / "nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as ours, socket.socket(socket.AF_UNIX) as theirs:
        ours.bind(str(own))
        ours.listen()
        assert not served_on(tmp_path, GPU, own=own)
        assert served_on(tmp_path, GPU, own=None), "a second agent"
        theirs.bind(str(other))
        assert not served_on(tmp_path, GPU, own=own), "nobody listens"
        theirs.listen(0)
        assert served_on(tmp_path, GPU, own=own)
        assert served_on(tmp_path, GPU, own=own), "also one that has no time to accept"
        assert served_on(tmp_path, GPU, own=own)
        assert not served_on(tmp_path, SEVENTH, own=None)
    assert other.exists()
    assert not served_on(tmp_path, GPU, own=own), "killed, with its socket left behind"
    (tmp_path / "text-gpu.sock").touch()
    assert not served_on(tmp_path, GPU, own=own)
    assert not served_on(tmp_path / "missing", GPU, own=own)
