"""An MPS server that ends while its daemon is asked about it, or told of limits: nobody has changed anything."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.local.test_parts import admit, part_of
from tests.machines import wait_until
from tests.node.machines import Node, change
from tests.node.processes import isolated
from tests.node.test_mps_daemons import GIB, asked, only, short, start, t4
from tests.node.test_mps_health import ask_for_part, faults
from tranche.core.request import Isolation
from tranche.hardware.mps_control import MpsControlClient
from tranche.node.host import Host

__all__ = ["short", "t4"]  # fixtures
ABOUT_A_SERVER = ["get_server_status", "get_device_pinned_mem_limit", "get_active_thread_percentage"]


def end_server_before(monkeypatch: pytest.MonkeyPatch, host: Host, command: str) -> list[str]:
    """Have the server of the only device end right before its daemon is given that command; the command, once it was given."""
    (record,) = host.daemons.records.all()
    (server,) = host.daemons.process(record.device_uuid).servers()
    given: list[str] = []
    really = MpsControlClient.ask

    def ask(self: MpsControlClient, words: str, **more: Any) -> str:
        if words.startswith(command) and not given:
            given.append(words)
            os.kill(server.pid, signal.SIGKILL)
            wait_until(lambda: not really(self, "get_server_list").strip())
        return really(self, words, **more)

    monkeypatch.setattr(MpsControlClient, "ask", ask)
    return given


@isolated
@pytest.mark.parametrize("command", ABOUT_A_SERVER)
def test_a_server_that_ends_while_its_daemon_is_asked_is_no_change_of_limits(
    t4: Node, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        given = end_server_before(monkeypatch, host, command)
        view = host.view(thorough=True)
        assert given
        assert [each.grants[0].walls.isolation for each in view.allocations] == [Isolation.SOFT]
        assert faults(host) == []
        ask_for_part(host)


@isolated
@pytest.mark.parametrize("command", [*ABOUT_A_SERVER, "set_device_pinned_mem_limit"])
def test_a_limit_is_raised_for_the_next_server_when_this_one_ends_meanwhile(
    t4: Node, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        given = end_server_before(monkeypatch, host, command)
        change(host, start(only(host), 5 * GIB))
        assert given
        assert only(host).daemons[0].limit == 5 * GIB
        assert asked(host, "get_default_device_pinned_mem_limit 0").strip() == "5G"
        assert faults(host) == []


@isolated
def test_what_somebody_has_changed_is_found_although_a_server_ends_meanwhile(
    t4: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        asked(host, "set_default_device_pinned_mem_limit 0 15G")
        given = end_server_before(monkeypatch, host, "get_active_thread_percentage")
        view = host.view(thorough=True)
        assert given
        assert [each.grants[0].walls.isolation for each in view.allocations] == [Isolation.NONE]
