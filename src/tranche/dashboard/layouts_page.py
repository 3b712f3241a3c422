"""What a layout would do, before anybody applies it: what it keeps, makes and destroys, and who stands in the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tranche.dashboard.before_after import before_and_after
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, table
from tranche.documents.blocks import Document
from tranche.documents.markup import Child, Element, element


def layouts_page(
    names: Sequence[str], chosen: str, preview: Document | None, trouble: str, overview: Document
) -> DashboardPage:
    """The choice of layouts, and of the chosen one the preview, or why there is none."""
    if preview is not None:
        live = element("div", _previewed(chosen, preview, overview))
    elif trouble:
        live = element("p", trouble, class_="note")
    else:
        live = element("p", "Choose a layout to see what it would keep, make and destroy. Nothing is changed.")
    return DashboardPage("Layouts", live, _choice(names, chosen) if names else None)


def _choice(names: Sequence[str], chosen: str) -> Element:
    options = [element("option", each, value=each, selected=each == chosen) for each in names]
    return element(
        "form",
        element("label", "Layout", element("select", options, name="layout", id="layout")),
        element("button", "What would it do?"),
        action="/layouts",
        method="get",
        class_="ask",
        aria_label="Preview a layout",
    )


def _previewed(chosen: str, preview: Document, overview: Document) -> Iterator[Child]:
    blockers = [each for gpu in preview["gpus"] for each in gpu["blockers"]]
    if blockers:
        yield element(
            "p", element("strong", "Refused now"), ": nothing would be changed, for this is in use:", class_="note"
        )
        yield element("ul", [element("li", each) for each in blockers])
    else:
        yield element("p", element("strong", "Possible now"), f": {preview['summary']}.")
        yield element("p", "To do it: ", code(f"tranche layout apply -c {chosen}"))
    yield from (element("p", each, class_="note") for each in preview["warnings"])
    if preview.get("lost"):
        yield element("p", f"The driver cannot reach {', '.join(preview['lost'])}.", class_="note")
    yield element("h2", "Before and after")
    yield from before_and_after(overview["gpus"], preview["after"], overview["allocations"])
    steps = [(f"GPU {gpu['index']}", each) for gpu in preview["gpus"] for each in gpu["steps"]]
    yield table("What would be done" if not blockers else "What would be done where nothing is in the way",
                ("GPU", "Step"), steps, "Nothing is to be done.")  # fmt: skip
