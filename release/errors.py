"""What can go wrong while something is made or checked for delivery."""

from __future__ import annotations


class ReleaseError(Exception):
    """A program, a source or a deliverable is not what it has to be. `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ImageBroken(ReleaseError):
    """The sources do not make the image that they have to: a step of the Dockerfile fails, or the image is too big."""
