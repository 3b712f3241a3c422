"""What the agent's parts tell one another of layouts: the MIG manager says what there is, for who tells of the node."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.kubernetes.mig_manager.mig_node import ManagedNode, on_node
from tests.kubernetes.waiting import until
from tranche.kubernetes.agent.node_reporter import NodeReporter
from tranche.kubernetes.agent.process import AgentOptions, build_parts
from tranche.kubernetes.device_plugin.config_source import ConfigSource
from tranche.kubernetes.mig_manager.drain import InUsePolicy
from tranche.kubernetes.mig_manager.manager import MigManager, MigSettings
from tranche.kubernetes.rollout.ticket import parse_budget

HALF = "version: v1\nmig-configs: {custom: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1}}]}"


def test_what_layouts_there_are_is_told_at_once_and_when_the_config_map_changes(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        options = SimpleNamespace(
            without={"dra", "device-plugin", "feature-labels"},
            layouts=MigSettings(config_map="layouts", policy=InUsePolicy.DRAIN, heeds_mode=True),
            budget=parse_budget("1"),
            daemon_set="agent",
            tell_view=True,
        )
        parts = list(build_parts(node.services, cast(ConfigSource, None), cast(AgentOptions, options)))
        manager = next(each for each in parts if isinstance(each, MigManager))
        reporter = next(each for each in parts if isinstance(each, NodeReporter))

        async def told() -> Any:
            await node.services.inventory.latest.first()
            seen = await node.services.node.first()
            assert seen is not None
            return (await reporter.now(seen, None)).told.layouts

        assert await told() is None
        task = asyncio.create_task(manager.run())
        try:
            await manager.layouts.first()
            first = await told()
            assert (first.managed, first.in_use, first.heeds_mode, first.turns) == (True, "drain", True, True)
            assert (first.offer.config_map, first.offer.declared) == ("tranche/layouts", None)
            node.config_map(HALF)
            await until(lambda: manager.layouts.value.declared is not None)
            assert (await told()).offer.declared is not None
            node.config_map("not: [layouts")
            await until(lambda: bool(manager.layouts.value.broken))
            assert (await told()).offer.broken
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    on_node(tmp_path, test, "A100-40GB")
