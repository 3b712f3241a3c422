"""The CDI files of shares: whose file is removed, and what a folder that cannot be read says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tranche.core.errors import CdiUnavailable
from tranche.hardware.cdi import CdiDevice, CdiSpec
from tranche.hardware.nodes import ContainerEdits
from tranche.kubernetes.node.share_edits import FiledKeeper, ShareFiles
from tranche.node.processes.pod_processes import claim_mark

KIND = "tranche.dev/placed"


def spec_of(unit: str, uid: str) -> CdiSpec:
    edits = ContainerEdits((), (), ((claim_mark(uid), f"team-a/{uid}"),), ())
    return CdiSpec(KIND, (CdiDevice(unit, edits),), ContainerEdits((), (), (), ()), unit)


def test_only_the_files_of_the_pod_are_removed(tmp_path: Path) -> None:
    files = ShareFiles(tmp_path, KIND)
    for unit, uid in (("0", "one"), ("1", "other"), ("2", "one")):
        files.write(spec_of(unit, uid))
    files.remove_of(claim_mark("one"))
    assert {name: mark.variable for name, mark in files.marks().items()} == {"1": claim_mark("other")}


def test_a_unit_that_another_pod_has_got_meanwhile_keeps_its_file(tmp_path: Path) -> None:
    """The kubelet gives the unit of a pod that has ended to the next one while the old pod's files are looked for."""

    class Late(ShareFiles):
        def marks(self, *, required: bool = False) -> Mapping[str, FiledKeeper]:
            found = super().marks(required=required)
            self.write(spec_of("0", "next"))
            return found

    files = Late(tmp_path, KIND)
    files.write(spec_of("0", "one"))
    files.remove_of(claim_mark("one"))
    assert files.mark("0").variable == claim_mark("next")


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(CdiUnavailable):
        ShareFiles(file, KIND).remove_of(claim_mark("one"))
    ShareFiles(tmp_path / "none", KIND).remove_of(claim_mark("one"))
