"""The benchmark of a fleet takes part in what agents do with a node."""

from __future__ import annotations

import inspect
from pathlib import Path

from bench.fleet import _Machine
from bench.machine import empty_machine

from tranche.node.host import Host


def test_its_machine_is_changed_by_the_words_by_which_a_host_is(tmp_path: Path) -> None:
    words = [each.name for each in inspect.signature(Host.change).parameters.values() if each.kind is each.KEYWORD_ONLY]
    machine = _Machine(empty_machine(1), tmp_path, "node-0")

    assert "apart" in words
    inspect.signature(machine.change).bind(lambda view: view, **dict.fromkeys(words))
