"""What the agent's parts tell one another of layouts: the MIG manager says what there is, for who tells of the node."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tests.kubernetes.mig_manager.mig_node import ManagedNode, on_node
from tests.kubernetes.waiting import until
from tranche.kubernetes.agent import parts
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.mig_manager.drain import InUsePolicy
from tranche.kubernetes.mig_manager.manager import MigSettings
from tranche.kubernetes.rollout.budget import parse_budget
from tranche.kubernetes.telling.told_layouts import LayoutReport

HALF = "version: v1\nmig-configs: {custom: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1}}]}"


def test_what_layouts_there_are_is_told_at_once_and_when_the_config_map_changes(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        told: LatestValue[LayoutReport] = LatestValue()
        settings = MigSettings(config_map="layouts", policy=InUsePolicy.DRAIN, heeds_mode=True)
        manager = parts.mig_manager(node.services, settings, parse_budget("1"), "agent", told)
        task = asyncio.create_task(manager.run())
        try:
            first = await told.first()
            assert (first.managed, first.in_use, first.heeds_mode, first.turns) == (True, "drain", True, True)
            assert first.offer is not None
            assert (first.offer.config_map, first.offer.declared) == ("tranche/layouts", None)
            node.config_map(HALF)
            await until(lambda: cast(Any, told.value.offer).declared is not None)
            node.config_map("not: [layouts")
            await until(lambda: bool(cast(Any, told.value.offer).broken))
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    on_node(tmp_path, test, "A100-40GB")
