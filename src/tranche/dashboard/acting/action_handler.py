"""Where forms come in: whether one counts, whether its plan still comes out, and then the work begins."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from http import HTTPStatus

from tranche.core.errors import TrancheError
from tranche.dashboard.access import RefusalReason
from tranche.dashboard.acting.action import DashboardAction
from tranche.dashboard.acting.cordon import CordonAction, UncordonAction
from tranche.dashboard.acting.form_keys import FormKeyStore
from tranche.dashboard.acting.layout import LayoutAction
from tranche.dashboard.acting.operations import OperationRunner
from tranche.dashboard.acting.pages import operation_page, plan_address, plan_page, trouble_page
from tranche.dashboard.acting.release import ReleaseAction
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.node.host import Host
from tranche.node.state.session import StateFolder

ONLY_SHOWS = RefusalReason(
    HTTPStatus.FORBIDDEN, "this dashboard only shows: 'tranche dashboard --act' serves one that acts"
)


class ActionHandler:
    """Without `open_host`, which opens the machine to change it, plans are shown and nothing is done."""

    def __init__(
        self,
        places: StateFolder,
        open_host: Callable[[], AbstractContextManager[Host]] | None,
        news: Callable[[], None],
    ) -> None:
        self._places = places
        self._open_host = open_host
        self._keys = FormKeyStore(secrets.token_bytes(32), clock=time.monotonic, new_id=lambda: secrets.token_hex(8))
        self._operations = OperationRunner(news, lambda: secrets.token_hex(8))

    @property
    def acts(self) -> bool:
        """Whether anything can be done here."""
        return self._open_host is not None

    def page(
        self, path: str, query: Mapping[str, str], seen: MachineSnapshot, session: str, *, part: bool
    ) -> DashboardPage | str | None:
        """The page of that path; None where there is none. Or the address of the plan of now, where its address names another.

        A `part` of a page goes with a plan that is on it already.
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
        """Why a form does not count; one that does is used up."""
        if not self.acts:
            return ONLY_SHOWS
        action = deed_of(kind, fields)
        if action is None:
            return RefusalReason(HTTPStatus.NOT_FOUND, "there is nothing of that name to do")
        why = self._keys.spend(fields.get("key", ""), session, action.label.name, fields.get("plan", ""))
        return RefusalReason(HTTPStatus.FORBIDDEN, f"nothing was done: {why}") if why else None

    def answer(self, kind: str, fields: Mapping[str, str], seen: MachineSnapshot) -> str | RefusalReason:
        """Begin what a form that counts asks for, if the plan that it confirms still comes out; where to see what came of it."""
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
    """The action of a form or of its page's address; None when there is none."""
    if kind == "release" and (id := fields.get("id", "")):
        return ReleaseAction(id)
    if kind == "cordon" and (gpu := fields.get("gpu", "")):
        return CordonAction(gpu, fields.get("reason", ""))
    if kind == "uncordon" and (gpu := fields.get("gpu", "")):
        return UncordonAction(gpu)
    if kind == "layout" and (layout := fields.get("layout", "")):
        return LayoutAction(layout)
    return None
