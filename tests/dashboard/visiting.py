"""Somebody with a browser's cookie, who reads plans and sends their forms as a browser does, without one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from urllib.parse import urlencode

from tests.dashboard.asking import Answered
from tests.dashboard.reading import parsed, text_of
from tests.dashboard.served import ServedDashboard

_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class PlanForm:
    """A form of a page: where it goes, and its fields."""

    action: str
    fields: dict[str, str]

    def with_fields(self, **fields: str) -> PlanForm:
        """The same with other fields."""
        return PlanForm(self.action, {**self.fields, **fields})


@dataclass(frozen=True, slots=True)
class Visitor:
    """A session of one dashboard."""

    dashboard: ServedDashboard
    cookie: str

    @classmethod
    def of(cls, dashboard: ServedDashboard) -> Visitor:
        """Enter."""
        entered = dashboard.ask(f"/enter?token={dashboard.token}", token=False)
        return cls(dashboard, entered.headers["set-cookie"].split(";")[0])

    def open(self, path: str) -> Answered:
        """A page, whatever it leads on to."""
        answer = self.dashboard.ask(path, token=False, Cookie=self.cookie)
        return self.open(answer.headers["location"]) if answer.status == 303 else answer

    def form(self, path: str) -> PlanForm:
        """The one form of a page that sends something."""
        answer = self.open(path)
        assert answer.status == 200, answer.text
        (found,) = [each for each in parsed(answer.text).iter("form") if each.get("method") == "post"]
        fields = {str(each.get("name")): str(each.get("value")) for each in found.iter("input")}
        return PlanForm(str(found.get("action")), fields)

    def send(self, form: PlanForm, **headers: str) -> Answered:
        """The answer to a form; headers are those of a browser, but for the ones given."""
        given = {"Origin": f"http://{self.dashboard.host}", "Cookie": self.cookie, **headers}
        kind = {"Content_Type": "application/x-www-form-urlencoded"}
        body = urlencode(form.fields)
        return self.dashboard.ask(form.action, method="POST", token=False, body=body, **kind, **given)

    def outcome(self, answer: Answered) -> str:
        """What the page of what was begun says in the end."""
        assert answer.status == 303, answer.text
        deadline = time.monotonic() + _SECONDS
        while (text := self.state(answer)).startswith("In progress"):
            assert time.monotonic() < deadline, "it does not end"
            time.sleep(0.05)
        return text

    def state(self, answer: Answered) -> str:
        """How far it is, by its page."""
        page = parsed(self.open(answer.headers["location"]).text)
        (state,) = [each for each in page.iter("p") if each.get("id") == "state"]
        return text_of(state)
