"""Unpacked images are kept once: a node's files are links, and what its containerd writes to is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.image_store import keep_store, use_store

from cluster import image_store

_LAYER = "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/bin/sh"
_DATABASE = "io.containerd.metadata.v1.bolt/meta.db"
_IDENTITY = "io.containerd.grpc.v1.introspection/uuid"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """What the containerd of a first node has left."""
    root = tmp_path / "first"
    for name in (_LAYER, _DATABASE, _IDENTITY):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("as it was")
    return root


def test_a_node_has_links_to_the_layers_and_a_database_and_an_identity_of_its_own(first: Path, tmp_path: Path) -> None:
    store, root = tmp_path / "stores" / "a", tmp_path / "second"
    keep_store(first, store)
    use_store(store, root)
    assert (root / _LAYER).samefile(first / _LAYER)
    (root / _DATABASE).write_text("changed")
    assert (store / _DATABASE).read_text() == (first / _DATABASE).read_text() == "as it was"
    assert not (root / _IDENTITY).exists()


def test_where_files_cannot_be_linked_they_are_copied(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = image_store._copied
    monkeypatch.setattr(
        image_store, "_copied", lambda option, *places: "another device" if "l" in option else copied(option, *places)
    )
    keep_store(first, tmp_path / "stores" / "a")
    assert (tmp_path / "stores" / "a" / _LAYER).read_text() == "as it was"
    assert not (tmp_path / "stores" / "a" / _LAYER).samefile(first / _LAYER)


def test_a_copy_that_was_cut_short_is_made_again_and_old_stores_go(first: Path, tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    (stores / "a.new" / "half").mkdir(parents=True)
    for name in "abc":
        keep_store(first, stores / name)
    assert sorted(each.name for each in stores.iterdir()) == ["b", "c"]
