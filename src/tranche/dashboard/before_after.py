"""GPUs before a change and after it, one pair of bars for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tranche.dashboard.fleet_page import gpu_bar, key
from tranche.documents.blocks import Document, blocks_of
from tranche.documents.markup import Element, element


def before_and_after(
    before: Sequence[Document], after: Sequence[Document], holders: Sequence[Document]
) -> Iterator[Element]:
    """What the looks mean, and the bars of each GPU of `after` that was there before. `holders` are the allocations of before."""
    was = {gpu.uuid: gpu for gpu in blocks_of(before, holders)}
    expected = blocks_of(after, holders)
    yield key([*was.values(), *expected])
    rows = [
        element(
            "div",
            element("p", element("strong", gpu.label), element("br"), element("span", gpu.model, class_="muted")),
            element(
                "div",
                _when("before"),
                gpu_bar(was[gpu.uuid], "Before: "),
                _when("after"),
                gpu_bar(gpu, "After: "),
                class_="pair",
            ),
            class_="gpu",
        )
        for gpu in expected
        if gpu.uuid in was
    ]
    yield element("div", rows, class_="gpus")


def _when(word: str) -> Element:
    return element("span", word, class_="muted", aria_hidden="true")
