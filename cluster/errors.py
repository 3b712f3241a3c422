"""What can go wrong with a cluster, as one error that says what happened and what to do next."""

from __future__ import annotations


class ClusterError(Exception):
    """Something about a test cluster did not work; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message}\n{hint}")
        self.message = message
        self.hint = hint


class UnsuitableMachine(ClusterError):
    """No cluster can run on this machine as it is: not Linux, not root, or something is missing that cannot be got."""


class NotFound(ClusterError):
    """The API server has no such object."""
