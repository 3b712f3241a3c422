"""Which GPU a lost one is: it is named only where no other card can be at its index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.strategies import gpu_on
from tranche.core.board import board_by_key
from tranche.core.state import DeviceVisibility, GpuState, NodeState
from tranche.node.state import known_gpus
from tranche.node.state.known_gpus import with_lost_named
from tranche.node.state.session import StateFolder

H100 = board_by_key("H100-80GB-SXM")
assert H100 is not None
GPUS = tuple(replace(gpu_on(H100, index=index), pci_bus_id=f"0000:0{index}:00.0", minor=index) for index in range(3))


def nameless(gpu: GpuState) -> GpuState:
    """The GPU as a driver shows it that has lost it altogether."""
    return replace(gpu, uuid=f"lost-{gpu.index}", name="lost GPU", pci_bus_id="", minor=None, memory=0, lost=True)


@pytest.fixture
def places(tmp_path: Path) -> StateFolder:
    seen = StateFolder(tmp_path)
    assert look(seen, *GPUS) == GPUS
    return seen


def look(places: StateFolder, *gpus: GpuState, scope: DeviceVisibility = DeviceVisibility.ALL) -> tuple[GpuState, ...]:
    return with_lost_named(NodeState(gpus, scope=scope), places, remember=True).gpus


def test_a_lost_gpu_is_the_one_that_was_seen_at_its_index(places: StateFolder) -> None:
    _, found, _ = look(places, GPUS[0], nameless(GPUS[1]), GPUS[2])
    assert found.lost
    assert (found.uuid, found.name, found.pci_bus_id, found.minor) == (GPUS[1].uuid, GPUS[1].name, "0000:01:00.0", 1)
    assert found.memory == 0, "what it has now is not known"
    assert look(places, *map(nameless, GPUS))[2].uuid == GPUS[2].uuid
    assert look(places, *GPUS) == GPUS


def test_nobody_is_named_where_a_card_may_have_moved(places: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = replace(GPUS[2], index=0)
    assert look(places, moved, nameless(GPUS[1]))[1].uuid == "lost-1"
    assert look(places, GPUS[0], nameless(GPUS[1]), scope=DeviceVisibility.GPUS)[1].uuid == "lost-1"
    monkeypatch.setattr(known_gpus, "boot_id", lambda: "another boot")
    assert look(places, GPUS[0], nameless(GPUS[1]), GPUS[2])[1].uuid == "lost-1"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"boot": 7, "gpus": [7]}', '{"gpus": null}'])
def test_a_file_that_cannot_be_read_names_nobody(places: StateFolder, text: str) -> None:
    places.known_gpus.write_text(text)
    assert look(places, GPUS[0], nameless(GPUS[1]), GPUS[2])[1].uuid == "lost-1"
