"""Machines for tests of the node layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.machines import Node, node_of


@pytest.fixture
def a100(tmp_path: Path) -> Node:
    """One A100 40 GB, MIG mode off."""
    return node_of(tmp_path, "A100-40GB")


@pytest.fixture
def two_h100(tmp_path: Path) -> Node:
    """Two H100 80 GB, MIG mode off."""
    return node_of(tmp_path, "H100-80GB-SXM", "H100-80GB-SXM")
