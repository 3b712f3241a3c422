"""Shows plans, and handles their forms: checks that each is valid and that its plan still holds, then starts the work.

Each operation has its own thread, so that a hanging driver blocks nothing else. The threads end with the process, as if a command
were killed. The next look at the machine undoes what one left half done. Where the server acts, the views link to the plans.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus

from tranche.core.errors import AllocationUnknown, GpuBusy, StateMoved, TrancheError
from tranche.dashboard.access import RefusalReason
from tranche.dashboard.acting.actions import (
    ActionPlan,
    CordonAction,
    DashboardAction,
    LayoutAction,
    ReleaseAction,
    UncordonAction,
    action_of,
)
from tranche.dashboard.acting.forms import FormKeyStore, moved_note, plan_form
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, table
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.markup import Child, Element, element
from tranche.documents.slices import why_withheld
from tranche.node.host import Host
from tranche.node.state.session import StateFolder

_LOG = logging.getLogger(__name__)
_MOST_RUNNING = 8
_KEPT = 200

Work = Callable[[Callable[[str], None]], str]
"""Does the work, tells each step as it begins, and says how it went."""
_MOVED = "the machine has changed since you saw the plan"
_CHANGED = "The machine has changed, so this plan is no longer valid."
_LONGEST_REASON = 200
ONLY_SHOWS = RefusalReason(
    HTTPStatus.FORBIDDEN, "this dashboard is read-only; to act, start it with: tranche dashboard --act"
)


class OperationState(StrEnum):
    """REFUSED: nothing was changed. FAILED: events say what was changed and undone."""

    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


_WORDS = {
    OperationState.RUNNING: "In progress.",
    OperationState.DONE: "Done.",
    OperationState.REFUSED: "Refused: nothing was changed.",
    OperationState.FAILED: "It failed.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """How far an operation is: `steps` of `expected` have begun; `said` is the outcome. `again` is the address of its plan."""

    id: str
    title: str
    again: str
    expected: int
    state: OperationState = OperationState.RUNNING
    steps: tuple[str, ...] = ()
    said: str = ""


class OperationRunner:
    """Safe to use from several threads. `news` is called on every change, from any thread."""

    def __init__(self, news: Callable[[], None], new_id: Callable[[], str]) -> None:
        self._news = news
        self._new_id = new_id
        self._lock = threading.Lock()
        self._known: dict[str, Operation] = {}

    def begin(self, title: str, again: str, expected: int, work: Work) -> str | None:
        """Begin an operation and return its id; None while too many run."""
        with self._lock:
            running = [each for each in self._known.values() if each.state is OperationState.RUNNING]
            if len(running) >= _MOST_RUNNING:
                return None
            begun = Operation(self._new_id(), title, again, expected)
            self._known[begun.id] = begun
            for old in [each.id for each in self._known.values() if each.state is not OperationState.RUNNING][:-_KEPT]:
                del self._known[old]
        run = copy_context().run
        threading.Thread(target=run, args=(self._do, begun.id, work), daemon=True, name="operation").start()
        return begun.id

    def get(self, id: str) -> Operation | None:
        """The operation as it is now; None when it is no longer known."""
        with self._lock:
            return self._known.get(id)

    def _do(self, id: str, work: Work) -> None:
        def tell(step: str) -> None:
            self._change(id, lambda before: replace(before, steps=(*before.steps, step)))

        state = OperationState.DONE
        try:
            said = work(tell)
        except TrancheError as error:
            # Raised before the first step, these errors mean that nothing was changed.
            refused = isinstance(error, AllocationUnknown | GpuBusy | StateMoved) and not self._begun(id)
            state = OperationState.REFUSED if refused else OperationState.FAILED
            said = f"{error.message}. {error.hint}".strip() if error.hint else f"{error.message}."
        except Exception as error:
            _LOG.exception("an operation failed")
            state, said = OperationState.FAILED, f"{type(error).__name__}: {error}"
        self._change(id, lambda before: replace(before, state=state, said=said))

    def _begun(self, id: str) -> bool:
        found = self.get(id)
        return found is not None and bool(found.steps)

    def _change(self, id: str, change: Callable[[Operation], Operation]) -> None:
        with self._lock:
            self._known[id] = change(self._known[id])
        self._news()


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
                return None if found is None else _operation_page(found)
            case ["act", kind] if (action := action_of(kind, query)) is not None:
                return self._plan_page(action, query, seen, session, part=part)
            case _:
                return None

    def accepted(self, kind: str, fields: Mapping[str, str], session: str) -> DashboardAction | RefusalReason:
        """The action of a valid form, which is used up; else why the form is refused."""
        if not self.acts:
            return ONLY_SHOWS
        action = action_of(kind, fields)
        if action is None:
            return RefusalReason(HTTPStatus.NOT_FOUND, "there is no action with that name")
        why = self._keys.spend(fields.get("key", ""), session, action.name, fields.get("plan", ""))
        return RefusalReason(HTTPStatus.FORBIDDEN, f"nothing was done: {why}") if why else action

    def answer(self, action: DashboardAction, confirmed: str, seen: MachineSnapshot) -> str | RefusalReason:
        """Begin an accepted action if its confirmed plan still holds; returns the address of what came of it."""
        open_host = self._open_host
        assert open_host is not None
        try:
            plan = action.plan(seen, self._places)
        except TrancheError:
            return action.address(moved=True)
        if plan.digest != confirmed or not plan.possible:
            return action.address(plan.digest, moved=True)

        def work(tell: Callable[[str], None]) -> str:
            with open_host() as host:
                return action.do(host, confirmed, tell)

        begun = self._operations.begin(action.title, action.address(), len(plan.steps), work)
        if begun is None:
            message = "nothing was done: too many actions are still in progress"
            return RefusalReason(HTTPStatus.SERVICE_UNAVAILABLE, message)
        return f"/actions/{begun}"

    def _plan_page(
        self, action: DashboardAction, query: Mapping[str, str], seen: MachineSnapshot, session: str, *, part: bool
    ) -> DashboardPage | str:
        shown, moved = query.get("plan", ""), "moved" in query
        try:
            plan = action.plan(seen, self._places)
        except TrancheError as error:
            said = element("p", f"{error.message}. {error.hint}".strip(), class_="note")
            return DashboardPage(action.title, said, moved_note(_MOVED) if moved else None)
        same = plan.digest == shown
        if not same and not part:
            return action.address(plan.digest, moved=moved)
        key = self._keys.key(session, action.name, plan.digest) if self.acts else ""
        return plan_page(action, plan, key, same=same, moved=moved)


def with_links(page: DashboardPage, path: str, query: Mapping[str, str], seen: MachineSnapshot) -> DashboardPage:
    """The page with links to the plans of its actions. Nothing is done before its plan is shown."""
    links = [_link(action) for action in _actions_on(path, query, seen)]
    if not links:
        return page
    listed = element("nav", element("ul", links, class_="choices acts"), aria_label="Available actions")
    return replace(page, live=element("div", page.live, listed))


def _link(action: DashboardAction) -> Element:
    link = element("a", f"{action.title}…", href=action.address(), id=f"way-{action.name.replace(' ', '-')}")
    return element("li", link)


def _actions_on(path: str, query: Mapping[str, str], seen: MachineSnapshot) -> Iterator[DashboardAction]:
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


def plan_page(action: DashboardAction, plan: ActionPlan, key: str, *, same: bool, moved: bool) -> DashboardPage:
    """The plan, and with a key the form that carries it out; without a key this server only shows.

    The plan stays as it was when the user opened the page. `same` says whether it still holds. `moved` says that another plan was
    confirmed.
    """
    again = element("a", "Show the current plan", href=action.address())
    fresh = element("p", "This plan is current.") if same else element("p", _CHANGED, " ", again, class_="note")
    above = element("div", moved_note(_MOVED) if moved else None, _planned(plan), _form(action, plan, key))
    return DashboardPage(action.title, element("div", fresh), above)


def _operation_page(found: Operation) -> DashboardPage:
    """An operation's progress and outcome."""
    begun = element("ol", [element("li", each) for each in found.steps], id="steps") if found.steps else None
    many = f"{len(found.steps)} of {found.expected} steps started." if found.state is OperationState.RUNNING else None
    live = element(
        "div",
        element("p", element("strong", _WORDS[found.state]), f" {found.said}", role="status", id="state"),
        element("p", many) if many else None,
        begun,
        element("p", _onwards(found)),
    )
    return DashboardPage(found.title, live)


def _onwards(found: Operation) -> list[Child]:
    ways: list[Child] = [element("a", "What happened", href="/events"), " ", element("a", "The fleet", href="/")]
    if found.state in (OperationState.REFUSED, OperationState.FAILED):
        ways += [" ", element("a", "Show the current plan", href=found.again)]
    return ways


def _planned(plan: ActionPlan) -> Element:
    refused = None
    if plan.refused:
        refused = element("p", element("strong", "Refused now"), f": {plan.refused}", class_="note")
    return element(
        "div",
        refused,
        table("What would be done", ("Where", "What"), plan.steps, "There is nothing to do."),
        [element("p", each) for each in plan.facts],
    )


def _form(action: DashboardAction, plan: ActionPlan, key: str) -> Element | None:
    if not plan.possible:
        return None
    if not key:
        how = element("p", "This dashboard is read-only; to act, start it with ", code("tranche dashboard --act"), ".")
        return element("div", how, element("p", "In a terminal: ", code(plan.command)))
    asked = None
    if action.asks:
        field = element("input", name="reason", id="reason", value="", maxlength=_LONGEST_REASON)
        asked = element("p", element("label", action.asks, " ", field))
    fields = {**action.fields, "plan": plan.digest, "key": key}
    verb = f"Kill {plan.ends}" if plan.ends else action.verb
    return plan_form(f"/act/{action.kind}", fields, action.title, verb, danger=bool(plan.ends), asked=asked)
