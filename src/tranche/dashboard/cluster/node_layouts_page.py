"""What a layout would do on a node of the cluster before it is set: what it keeps, and what it takes from whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tranche.dashboard.cluster.cluster_action import ClusterAction
from tranche.dashboard.cluster.node_layouts import LayoutPreview, NodeLayoutView
from tranche.dashboard.cluster.node_page import layouts_address, not_of_now
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.layouts_page import before_and_after
from tranche.dashboard.parts import layout_choice, node_link, notes, table
from tranche.documents.markup import Child, element


def node_layouts_page(
    layouts: NodeLayoutView, chosen: str, outlook: LayoutPreview | None, trouble: str, *, acts: bool
) -> DashboardPage:
    """The choice of layouts, and what the chosen one would do, or why that is unknown. With `acts` it links to setting it."""
    node = layouts.node
    shown: list[Child] = [element("p", "Of node ", node_link(node.name))]
    if layouts.told is not None:
        shown += notes(not_of_now(node))
    if layouts.unknown or trouble:
        shown += notes([layouts.unknown or trouble])
    elif outlook is None:
        shown.append(element("p", "Choose a layout to see what it would keep, and take from whom. Nothing is changed."))
    else:
        shown += notes(layouts.notes)
        shown += outlook_view(node, outlook)
        if acts and not outlook.nothing_to_do:
            action = ClusterAction("layout", node.name, layout=chosen)
            shown.append(element("p", element("a", f"{action.title}: show the plan", href=action.address)))
    names = layouts.names
    return DashboardPage(
        f"Layouts of node {node.name}",
        element("div", shown),
        layout_choice(names, chosen, layouts_address(node.name)) if names else None,
    )


def outlook_view(node: SeenNode, outlook: LayoutPreview, *, in_words: bool = True) -> Iterator[Child]:
    """What it would do, in words and as bars, and what stays."""
    if in_words:
        yield element("ul", [element("li", each) for each in outlook.said])
    if outlook.after:
        yield element("h2", "Before, and when nothing is in the way any more")
        gpus = [each for each in node.overview["gpus"] if each["uuid"] in {one["uuid"] for one in outlook.after}]
        yield from before_and_after(gpus, outlook.after, node.overview["allocations"])
    if kept := list(_kept(outlook)):
        yield table("What stays", ("GPU", "Slice", "MIG devices"), kept, "")


def _kept(outlook: LayoutPreview) -> Iterator[Sequence[Child | None]]:
    if outlook.changing:
        return
    for gpu in outlook.gpus:
        for each in gpu.kept:
            uuids = ", ".join(piece.uuid for piece in each.compute_instances)
            yield gpu.gpu.label, f"{each.profile} at {each.placement}", uuids
