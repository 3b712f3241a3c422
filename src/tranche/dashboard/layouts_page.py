"""What a layout would do, before anyone applies it: what it keeps, makes and destroys, and who stands in the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tranche.dashboard.fleet_page import gpu_bar, key
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, layout_choice, table
from tranche.documents.blocks import Document, blocks_of
from tranche.documents.markup import Child, Element, element


def layouts_page(
    names: Sequence[str], chosen: str, preview: Document | None, trouble: str, overview: Document
) -> DashboardPage:
    """The choice of layouts, and the preview of the chosen one, or why there is none."""
    if preview is not None:
        live = element("div", _previewed(chosen, preview, overview))
    elif trouble:
        live = element("p", trouble, class_="note")
    else:
        live = element("p", "Choose a layout to see what it would keep, create and destroy. This changes nothing.")
    return DashboardPage("Layouts", live, layout_choice(names, chosen, "/layouts") if names else None)


def _previewed(chosen: str, preview: Document, overview: Document) -> Iterator[Child]:
    blockers = [each for gpu in preview["gpus"] for each in gpu["blockers"]]
    if blockers:
        yield element(
            "p", element("strong", "Refused now"), ": nothing would change, because this is in use:", class_="note"
        )
        yield element("ul", [element("li", each) for each in blockers])
    else:
        yield element("p", element("strong", "Possible now"), f": {preview['summary']}.")
        yield element("p", "To apply it: ", code(f"tranche layout apply -c {chosen}"))
    yield from (element("p", each, class_="note") for each in preview["warnings"])
    if preview.get("lost"):
        yield element("p", f"The driver cannot reach {', '.join(preview['lost'])}.", class_="note")
    yield element("h2", "Before and after")
    yield from before_and_after(overview["gpus"], preview["after"], overview["allocations"])
    steps = [(f"GPU {gpu['index']}", each) for gpu in preview["gpus"] for each in gpu["steps"]]
    yield table("What would be done" if not blockers else "Steps on GPUs that are not blocked",
                ("GPU", "Step"), steps, "There is nothing to do.")  # fmt: skip


def before_and_after(
    before: Sequence[Document], after: Sequence[Document], holders: Sequence[Document]
) -> Iterator[Element]:
    """The legend, and the bars of each GPU of `after` that was there before. `holders` are the allocations before."""
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
