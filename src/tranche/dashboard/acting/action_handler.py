"""Handles forms: checks that each is valid and that its plan still holds, then starts the work.

Where the server acts, the views link to the plans.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from http import HTTPStatus

from tranche.core.errors import TrancheError
from tranche.dashboard.access import RefusalReason
from tranche.dashboard.acting.action import DashboardAction
from tranche.dashboard.acting.cordon import CordonAction, UncordonAction
from tranche.dashboard.acting.forms import FormKeyStore
from tranche.dashboard.acting.layout import LayoutAction
from tranche.dashboard.acting.operations import OperationRunner
from tranche.dashboard.acting.pages import operation_page, plan_address, plan_page, trouble_page
from tranche.dashboard.acting.release import ReleaseAction
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.markup import Element, element
from tranche.documents.slices import why_withheld
from tranche.node.host import Host
from tranche.node.state.session import StateFolder

ONLY_SHOWS = RefusalReason(
    HTTPStatus.FORBIDDEN, "this dashboard only shows: 'tranche dashboard --act' serves one that acts"
)


class ActionHandler:
    """Without `open_host`, which opens the machine for changes, it shows plans and does nothing."""

    def __init__(
        self,
        places: StateFolder,
        open_host: Callable[[], AbstractContextManager[Host]] | None,
        news: Callable[[], None],
    ) -> None:
        self._places = places
        self._open_host = open_host
        self._keys = FormKeyStore()
        self._operations = OperationRunner(news, lambda: secrets.token_hex(8))

    @property
    def acts(self) -> bool:
        """Whether this server acts."""
        return self._open_host is not None

    def page(
        self, path: str, query: Mapping[str, str], seen: MachineSnapshot, session: str, *, part: bool
    ) -> DashboardPage | str | None:
        """The page at that path, or None. For a plan's outdated address, the address of the current plan.

        A `part` is for a page that already shows a plan, and is never redirected.
        """
        match path.strip("/").split("/"):
            case ["actions", id]:
                found = self._operations.get(id)
                return None if found is None else operation_page(found)
            case ["act", kind] if (action := deed_of(kind, query)) is not None:
                return self._plan_page(action, query, seen, session, part=part)
            case _:
                return None

    def refusal(self, kind: str, fields: Mapping[str, str], session: str) -> RefusalReason | None:
        """Why a form is refused; an accepted form is used up."""
        if not self.acts:
            return ONLY_SHOWS
        action = deed_of(kind, fields)
        if action is None:
            return RefusalReason(HTTPStatus.NOT_FOUND, "there is nothing of that name to do")
        why = self._keys.spend(fields.get("key", ""), session, action.label.name, fields.get("plan", ""))
        return RefusalReason(HTTPStatus.FORBIDDEN, f"nothing was done: {why}") if why else None

    def answer(self, kind: str, fields: Mapping[str, str], seen: MachineSnapshot) -> str | RefusalReason:
        """Begin what an accepted form asks for if its plan still holds; returns the address of what came of it."""
        action, confirmed, open_host = deed_of(kind, fields), fields["plan"], self._open_host
        assert action is not None
        assert open_host is not None
        try:
            plan = action.plan(seen, self._places)
        except TrancheError:
            return plan_address(action, moved=True)
        if plan.digest != confirmed or not plan.possible:
            return plan_address(action, plan.digest, moved=True)

        def work(tell: Callable[[str], None]) -> str:
            with open_host() as host:
                return action.do(host, confirmed, tell)

        begun = self._operations.begin(action.label.title, plan_address(action), len(plan.steps), work)
        if begun is None:
            message = "nothing was done: too much that was begun here goes on still"
            return RefusalReason(HTTPStatus.SERVICE_UNAVAILABLE, message)
        return f"/actions/{begun}"

    def _plan_page(
        self, action: DashboardAction, query: Mapping[str, str], seen: MachineSnapshot, session: str, *, part: bool
    ) -> DashboardPage | str:
        shown, moved = query.get("plan", ""), "moved" in query
        try:
            plan = action.plan(seen, self._places)
        except TrancheError as error:
            return trouble_page(action, f"{error.message}. {error.hint}".strip(), moved=moved)
        same = plan.digest == shown
        if not same and not part:
            return plan_address(action, plan.digest, moved=moved)
        key = self._keys.key(session, action.label.name, plan.digest) if self.acts else ""
        return plan_page(action, plan, key, same=same, moved=moved)


def deed_of(kind: str, fields: Mapping[str, str]) -> DashboardAction | None:
    """The action that a form or its page's address names; None when there is none."""
    if kind == "release" and (id := fields.get("id", "")):
        return ReleaseAction(id)
    if kind == "cordon" and (gpu := fields.get("gpu", "")):
        return CordonAction(gpu, fields.get("reason", ""))
    if kind == "uncordon" and (gpu := fields.get("gpu", "")):
        return UncordonAction(gpu)
    if kind == "layout" and (layout := fields.get("layout", "")):
        return LayoutAction(layout)
    return None


def with_ways(page: DashboardPage, path: str, query: Mapping[str, str], seen: MachineSnapshot) -> DashboardPage:
    """The page with links to the plans of its actions. Nothing is done before its plan is shown."""
    ways = [_way(action) for action in _deeds(path, query, seen)]
    if not ways:
        return page
    listed = element("nav", element("ul", ways, class_="choices acts"), aria_label="What can be done")
    return replace(page, live=element("div", page.live, listed))


def _way(action: DashboardAction) -> Element:
    link = element(
        "a", f"{action.label.title}…", href=plan_address(action), id=f"way-{action.label.name.replace(' ', '-')}"
    )
    return element("li", link)


def _deeds(path: str, query: Mapping[str, str], seen: MachineSnapshot) -> Iterator[DashboardAction]:
    match path.strip("/").split("/"):
        case ["shares", id] if any(each.id == id for each in seen.view.allocations):
            yield ReleaseAction(id)
        case ["gpus", uuid]:
            for gpu in seen.view.node:
                if gpu.uuid == uuid:
                    yield UncordonAction(uuid) if why_withheld(seen.view, gpu) else CordonAction(uuid)
        case ["queue"]:
            for waiter in seen.queue:
                yield ReleaseAction(waiter.id)
        case ["layouts"] if layout := query.get("layout", ""):
            yield LayoutAction(layout)
        case _:
            return
