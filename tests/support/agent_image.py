"""The agent's image, for tests that need it."""

from __future__ import annotations

import sys

import pytest
from release.errors import ImageBroken, ReleaseError
from release.image import MadeImage, make_image


def image_or_skip() -> MadeImage:
    """The image of this checkout, built if it is not in the cache, which takes a minute.

    Skips the test if this machine cannot build images. ImageBroken if the sources do not make one: what needs the image must
    fail then, or a broken image would go unnoticed.
    """
    try:
        return make_image(lambda line: print(line, file=sys.stderr))
    except ImageBroken:
        raise
    except ReleaseError as error:
        pytest.skip(f"{error} {error.hint}".strip())
