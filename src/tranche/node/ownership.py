"""Whose a share is that is granted: its pod's or claim's namespace, or the user as whom this process works."""

from __future__ import annotations

import os
import pwd

from tranche.core.keeper import Keeper, ProcessKeeper
from tranche.core.share_owner import OwnerKind, ShareOwner


def owner_of(keeper: Keeper) -> ShareOwner | None:
    """The owner; None where nobody knows yet, as of a pod that is being admitted.

    A process's share is granted by its own command, so that this process's user is the share's.
    """
    if isinstance(keeper, ProcessKeeper):
        return ShareOwner(OwnerKind.USER, user_name(os.getuid()))
    return ShareOwner(OwnerKind.NAMESPACE, keeper.namespace) if keeper.namespace else None


def user_name(uid: int) -> str:
    """The name of a user; his number where the machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
