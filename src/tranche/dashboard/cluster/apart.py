"""One node apart from the others: what cannot be made of it is said of it alone, and in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tranche.dashboard.cluster.snapshot import SeenNode

UNSHOWN = "what its agent tells cannot be shown; the log of this page says more"

_log = logging.getLogger(__name__)

Made = TypeVar("Made")


def apart(node: str, make: Callable[[], Made], instead: Callable[[], Made]) -> Made:
    """What is made of the node, or what stands for it where that cannot be made."""
    try:
        return make()
    except Exception:
        # Whatever it is: a page of a thousand nodes must not be gone because of one.
        _log.exception("a node cannot be shown", extra={"node": node})
        return instead()


def unshown(node: SeenNode) -> SeenNode:
    """The node as one of which nothing is known but what Kubernetes says."""
    return SeenNode(node.name, node.standing, trouble=UNSHOWN, changed=node.changed)
