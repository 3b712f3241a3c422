"""What the agent's parts tell one another of layouts: the MIG manager says what there is, for who tells of the node."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from tests.kubernetes.mig_manager.mig_node import ManagedNode, on_node
from tests.kubernetes.waiting import until
from tranche.kubernetes.mig_manager.manager import MigManager, MigSettings

HALF = "version: v1\nmig-configs: {custom: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1}}]}"


def test_what_layouts_there_are_is_told_at_once_and_when_the_config_map_changes(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        manager = MigManager(node.services, MigSettings(config_map="layouts"))
        told = manager.layouts
        task = asyncio.create_task(manager.run())
        try:
            first = await told.first()
            assert (first.config_map, first.declared) == ("tranche/layouts", None)
            node.config_map(HALF)
            await until(lambda: told.value.declared is not None)
            node.config_map("not: [layouts")
            await until(lambda: bool(told.value.broken))
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    on_node(tmp_path, test, "A100-40GB")
