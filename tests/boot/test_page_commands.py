"""The commands of the pages that need systemd, carried out while a machine in a container boots."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.boot.conftest import ARTICLE, MakeBootable
from tests.boot.systemd_container import BootableMachine
from tests.support.page_commands import Command, executed, problems_in, script

pytestmark = pytest.mark.systemd

_PAGE = "docs/guides/boot.md"
_STATUS = tuple(command for command in executed(_PAGE) if command.section == "When it fails")
_BOOT = tuple(command for command in executed(_PAGE) if command.section != "When it fails")
_OTHERS = tuple(
    command
    for name in ("reference/cli", "guides/lab-server", "troubleshooting")
    for command in executed(f"docs/{name}.md", "systemd")
)
EXECUTED = (*_STATUS, *_BOOT, *_OTHERS)
_BEFORE = """export LC_ALL=C.UTF-8 PATH="$PATH:/opt/tranche"
mkdir -p /mnt/image/etc/systemd/system"""


def carry_out(made: BootableMachine, steps: Sequence[Command], order: str = "") -> None:
    """Run the commands as a service of the boot."""
    program = made.folder / "program"
    program.mkdir()
    (program / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (program / "sudo").chmod(0o755)
    steps = [Command("", "", _BEFORE, None), *steps]
    (program / "page").write_text(script(steps))
    made.stand_in("page", order=order, command="bash /opt/tranche/page > /out/said 2>&1")
    made.boot()
    wrong = problems_in(steps, (made.folder / "out/said").read_text())
    assert not wrong, "\n\n".join(wrong)


def test_the_units_come_and_go_by_the_commands_of_the_pages(bootable: MakeBootable) -> None:
    made = bootable("A100-40GB", partition=ARTICLE)
    (made.system / "tranche-boot.service").unlink()
    (made.system / "multi-user.target.wants/tranche-boot.service").unlink()
    (made.system / "tranche.service.d").mkdir()
    drop_in = (made.system / "tranche-boot.service.d/simulator.conf").read_text()
    (made.system / "tranche.service.d/simulator.conf").write_text(drop_in)
    carry_out(made, [*_BOOT, *_OTHERS])
    assert made.machine.machine.gpus()[0].compute_instances == 7
    assert not list(made.system.glob("tranche*.service"))


def test_a_failed_boot_says_why_as_the_page_shows(bootable: MakeBootable) -> None:
    carry_out(bootable("A100-40GB", partition="MIG_PARTITION=99\n"), _STATUS, "After=tranche-boot.service")
