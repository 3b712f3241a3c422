"""What can go wrong with a cluster, as one error that says what happened and what to do next."""

from __future__ import annotations

from release.errors import ReleaseError


class ClusterError(ReleaseError):
    """Something about a test cluster did not work."""

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}".strip()


class UnsuitableMachine(ClusterError):
    """No cluster can run on this machine as it is: not Linux, not root, or something is missing that cannot be got."""


class NotFound(ClusterError):
    """The API server has no such object."""
