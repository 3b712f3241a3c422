"""The page where a viewer enters, and the one that says as whom."""

from __future__ import annotations

from collections.abc import Sequence

from tranche.dashboard.cluster.kube_viewer import KubeUser
from tranche.dashboard.cluster.user_view import ViewerPermission
from tranche.dashboard.frame import DashboardPage, plain_page
from tranche.dashboard.parts import code, figures, notes
from tranche.documents.markup import Element, element


def login_page(trouble: str = "") -> str:
    """Asks for a token. It loads nothing."""
    form = element(
        "form",
        element(
            "label",
            "Token ",
            element("input", type="password", name="token", id="token", required=True, autocomplete="off"),
        ),
        element("button", "Enter"),
        action="/login",
        method="post",
    )
    said = element(
        "p",
        "The page shows what Kubernetes lets you see. Enter with a token of yours, such as ",
        code("kubectl create token ACCOUNT -n NAMESPACE"),
        " prints. It stays on the server, for eight hours at most, and your browser gets a cookie for it.",
    )
    alert = element("p", trouble, role="alert") if trouble else None
    return plain_page("Sign in", alert, said, form)


def you_page(viewer: KubeUser, rights: ViewerPermission, said: Sequence[str], acting: str) -> DashboardPage:
    """Who the viewer is, how they entered, and what they see; `acting` says what they can do."""
    some = "some" if rights.sight.everywhere or rights.sight.namespaces else "none"
    spaces = "all" if rights.sight.everywhere else ", ".join(sorted(rights.sight.namespaces)) or "none"
    live = element(
        "div",
        notes(said),
        figures(
            [
                ("user", code(viewer.user)),
                ("came with", "a token" if viewer.token else "a proxy, which names you"),
                ("names of namespaces", spaces),
                ("nodes", "all" if rights.all_nodes else some),
            ]
        ),
        element("h2", "Groups"),
        element("ul", [element("li", code(each)) for each in viewer.groups])
        if viewer.groups
        else element("p", "None."),
        element("h2", "Acting"),
        element("p", acting),
    )
    return DashboardPage("You", live, below=_leave() if viewer.token else None)


def _leave() -> Element:
    return element("form", element("button", "Leave"), action="/leave", method="post")
