"""The agent's image on the nodes of a cluster, as if they had pulled it."""

from __future__ import annotations

from collections.abc import Sequence

from release.image import MadeImage

from cluster.node import Node


def give_image(nodes: Sequence[Node], image: MadeImage | None) -> str:
    """Put the agent's image onto the nodes, if there is one; in words what was done. Without it the chart's pods never start."""
    if image is None:
        return "no node has the agent's image: `make image` has not made it of the sources as they are now"
    for each in nodes:
        each.import_image(image.archive, image.name, image.digest)
    return f"every node has the image {image.name}"
