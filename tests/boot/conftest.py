"""Machines that boot in a container of systemd's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.boot.debian_root import why_no_container
from tests.boot.systemd_container import BootableMachine
from tests.machines import machine_in

ARTICLE = "MIG_PARTITION=19,19,19,19,19,19,19\n"


class MakeBootable(Protocol):
    """Makes a machine of boards or of a type that boots with that file of settings."""

    def __call__(
        self, *boards: str, machine_type: str = "", partition: str | None = ARTICLE, timeout: str = "20s"
    ) -> BootableMachine: ...


@pytest.fixture
def bootable(tmp_path: Path) -> Iterator[MakeBootable]:
    """The machines are gone after the test."""
    if reason := why_no_container():
        pytest.skip(reason)
    with ExitStack() as stack:

        def make(
            *boards: str, machine_type: str = "", partition: str | None = ARTICLE, timeout: str = "20s"
        ) -> BootableMachine:
            machine = stack.enter_context(machine_in(tmp_path, *boards, machine_type=machine_type))
            made = BootableMachine(machine, tmp_path)
            made.prepare(partition, timeout=timeout)
            return made

        yield make
