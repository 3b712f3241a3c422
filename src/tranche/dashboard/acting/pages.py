"""An action's plan with the form that carries it out, and an operation's progress."""

from __future__ import annotations

from urllib.parse import urlencode

from tranche.dashboard.acting.action import ActionPlan, DashboardAction
from tranche.dashboard.acting.operations import Operation, OperationState
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, table
from tranche.documents.markup import Child, Element, element

_CHANGED = "The machine has changed: another plan comes out now, and this one is not carried out any more."
_LONGEST_REASON = 200
_WORDS = {
    OperationState.RUNNING: "It goes on.",
    OperationState.DONE: "Done.",
    OperationState.REFUSED: "Refused: nothing was changed.",
    OperationState.FAILED: "It failed.",
}


def plan_address(action: DashboardAction, plan: str = "", *, moved: bool = False) -> str:
    """The address of an action's current plan, or of that digest's. `moved` says that another plan was confirmed."""
    more = {**({"plan": plan} if plan else {}), **({"moved": "1"} if moved else {})}
    return f"/act/{action.label.kind}?{urlencode({**action.label.fields, **more})}"


def plan_page(action: DashboardAction, plan: ActionPlan, key: str, *, same: bool, moved: bool) -> DashboardPage:
    """The plan, and with a key the form that carries it out; without a key this server only shows.

    The plan stays as it was when the user opened the page. `same` says whether it still holds. `moved` says that another plan was
    confirmed.
    """
    again = element("a", "Show the plan of now", href=plan_address(action))
    fresh = element("p", "The plan is that of now.") if same else element("p", _CHANGED, " ", again, class_="note")
    above = element("div", _moved() if moved else None, _planned(plan), _form(action, plan, key))
    return DashboardPage(action.label.title, element("div", fresh), above)


def trouble_page(action: DashboardAction, trouble: str, *, moved: bool) -> DashboardPage:
    """Why there is no plan."""
    return DashboardPage(action.label.title, element("p", trouble, class_="note"), _moved() if moved else None)


def operation_page(found: Operation) -> DashboardPage:
    """An operation's progress and outcome."""
    begun = element("ol", [element("li", each) for each in found.steps], id="steps") if found.steps else None
    many = f"Begun: {len(found.steps)} of {found.expected} steps." if found.state is OperationState.RUNNING else None
    live = element(
        "div",
        element("p", element("strong", _WORDS[found.state]), f" {found.said}", role="status", id="state"),
        element("p", many) if many else None,
        begun,
        element("p", _onwards(found)),
    )
    return DashboardPage(found.title, live)


def _moved() -> Element:
    said = "Nothing was done: the machine has changed since you saw the plan. This is how it is now."
    return element("p", said, class_="note")


def _onwards(found: Operation) -> list[Child]:
    ways: list[Child] = [element("a", "What happened", href="/events"), " ", element("a", "The fleet", href="/")]
    if found.state in (OperationState.REFUSED, OperationState.FAILED):
        ways += [" ", element("a", "Show the plan of now", href=found.again)]
    return ways


def _planned(plan: ActionPlan) -> Element:
    refused = None
    if plan.refused:
        refused = element("p", element("strong", "Refused now"), f": {plan.refused}", class_="note")
    return element(
        "div",
        refused,
        table("What would be done", ("Where", "What"), plan.steps, "Nothing is to be done."),
        [element("p", each) for each in plan.facts],
    )


def _danger(plan: ActionPlan) -> str | None:
    return "danger" if plan.ends else None


def _form(action: DashboardAction, plan: ActionPlan, key: str) -> Element | None:
    if not plan.possible:
        return None
    if not key:
        how = element("p", "This dashboard only shows; ", code("tranche dashboard --act"), " serves one that acts.")
        return element("div", how, element("p", "In a terminal: ", code(plan.command)))
    hidden = {**action.label.fields, "plan": plan.digest, "key": key}
    asked = element("input", name="reason", id="reason", value="", maxlength=_LONGEST_REASON)
    return element(
        "form",
        [element("input", type="hidden", name=name, value=value) for name, value in hidden.items()],
        element("p", element("label", action.label.asks, " ", asked)) if action.label.asks else None,
        element("button", f"Kill {plan.ends}" if plan.ends else action.label.verb, id="do", class_=_danger(plan)),
        action=f"/act/{action.label.kind}",
        method="post",
        aria_label=action.label.title,
    )
