"""What the stream of a page of nodes carries: the rows that have changed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tranche.dashboard.cluster.choice import NodeFilter
from tranche.dashboard.cluster.live import ClusterUpdate
from tranche.dashboard.cluster.node_row import RowCache
from tranche.dashboard.cluster.nodes_page import nodes_summary
from tranche.dashboard.cluster.visibility import NameVisibility
from tranche.documents.describe import timestamp


def seen_message(news: ClusterUpdate, now: float) -> str:
    """Which version is the newest, of when, and whether a page has to be fetched anew; `now` is the server's clock."""
    told = {
        "version": news.version,
        "taken": timestamp(news.snapshot.taken),
        "now": timestamp(now),
        "trouble": news.trouble,
        "anew": news.change is None,
    }
    return _message("seen", told, news.version)


def rows_message(news: ClusterUpdate, cache: RowCache, choice: NodeFilter, sight: NameVisibility) -> str:
    """The rows that have changed, of those that are chosen, and the names of those that have gone; "" for nothing."""
    if news.change is None or not (news.change.nodes or news.change.gone):
        return ""
    changed = [cache.row(each) for each in news.change.nodes]
    taken = [each for each in changed if choice.takes(each, sight)]
    out = {each.name for each in changed} - {each.name for each in taken}
    every = cache.rows(news.snapshot)
    count = sum(choice.takes(each, sight) for each in every) if choice.query else len(every)
    told = {
        "rows": "".join(str(each.shown) for each in taken),
        "gone": sorted({*news.change.gone, *out}),
        "summary": str(nodes_summary(every, count, choice)),
    }
    return _message("rows", told)


def _message(kind: str, data: Mapping[str, Any], id: str = "") -> str:
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"
