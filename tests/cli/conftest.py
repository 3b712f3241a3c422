"""Machines for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.machines import TestMachine, machine_in, readable_folder, short_folder

MakeMachine = Callable[..., TestMachine]


@pytest.fixture
def make_machine() -> Iterator[MakeMachine]:
    """Makes a machine of the boards given, or of `machine_type`; its processes are ended after the test."""
    with ExitStack() as stack:
        folder = stack.enter_context(short_folder())

        def make(*boards: str, machine_type: str = "") -> TestMachine:
            return stack.enter_context(machine_in(folder, *boards, machine_type=machine_type))

        yield make


@pytest.fixture
def two_a100(make_machine: MakeMachine) -> TestMachine:
    """Two A100-40GB, uncut."""
    return make_machine("A100-40GB", "A100-40GB")


@pytest.fixture
def readable_a100() -> Iterator[TestMachine]:
    """One A100-40GB whose files other users may read."""
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine:
        machine.cache = folder / "cache"
        yield machine
