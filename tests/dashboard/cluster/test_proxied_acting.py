"""What is done for whom a proxy names: with the page's account, and only what Kubernetes has just said that he may do himself."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.asking import Answered
from tests.dashboard.cluster.reviewing import ACCESS_REVIEWS, People
from tests.dashboard.cluster.served_cluster import ServedClusterPage
from tests.dashboard.cluster.test_cluster_acting import (
    CORDON,
    NODE,
    POD,
    RELEASE,
    changes,
    events,
    fields_of,
    two_teams_served,
)
from tests.dashboard.reading import figures, parsed, text_of
from tests.kubernetes.fake_api_server import FakeApiServer, Json, Seen, api_server
from tests.kubernetes.waiting import patiently
from tests.machines import TRANCHE
from tranche.core.errors import KubernetesForbidden, KubernetesUnavailable, UsageError
from tranche.dashboard.acting.forms import FormKeyStore
from tranche.dashboard.cluster import kube_reviews
from tranche.dashboard.cluster.authentication import KubeUser, plainly_allowed
from tranche.dashboard.cluster.cluster_action import ClusterAction, ClusterActionHandler, release_plan
from tranche.dashboard.cluster.kube_reviews import AccessReviewClient
from tranche.dashboard.cluster.source import FleetReader
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.objects import KubePod, PodRef, RbacPermission

SECRET = "0123456789-0123456789"
ANA = KubeUser("ana", ("blue", "system:authenticated"))
CORDON_IT = {"verb": "patch", "resource": "nodes", "name": "n1"}
THEIRS = "/act?kind=release&node=n1&share=a1b1c1d1"


@contextmanager
def served(folder: Path, *options: str) -> Iterator[ServedClusterPage]:
    """Whoever is in ops may do everything, ana may list and delete blue's pods, and nils may look. Olga has a token as well."""
    people = People({"t-olga": "olga"})
    people.let("ana", "list pods", "get pods", "delete pods", namespaces=["blue"])
    for who in ("olga", "@ops"):
        people.let(who, "get pods", "delete pods", "patch nodes")
    for who in ("olga", "@ops", "nils", "zoe"):
        people.let(who, "list pods", "list nodes")
    people.let("zoe", "get pods", "delete pods", namespaces=["blue"])
    (folder / "secret").write_text(SECRET)
    with two_teams_served(people, "--act", f"--proxy-secret={folder / 'secret'}", *options) as page:
        yield page


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ServedClusterPage]:
    with served(tmp_path, "--proxy-act") as running:
        yield running


def named(user: str, group: str = "", secret: str = SECRET) -> dict[str, Any]:
    """The headers of a proxy that names somebody."""
    said = {"X_Tranche_Proxy_Secret": secret, "X_Remote_User": user, **({"X_Remote_Group": group} if group else {})}
    return {key: value for key, value in said.items() if value}


def send(page: ServedClusterPage, fields: dict[str, str], **headers: Any) -> Answered:
    given: dict[str, Any] = {"Origin": f"http://{page.host}", **headers}
    return page.ask("/act", method="POST", form=fields, **given)


def test_a_node_is_cordoned_for_whom_the_proxy_names_once_kubernetes_has_said_that_he_may(
    page: ServedClusterPage,
) -> None:
    shown = page.ask(CORDON, **named("ana@example.org", "ops"))
    assert "No new pods can be scheduled on node n1" in shown.text
    assert "its own account" in shown.text
    assert changes(page) == []
    asked_before = len(page.people.questions)
    done = send(page, fields_of(shown), **named("ana@example.org", "ops"))
    assert (done.status, done.headers["location"]) == (303, "/nodes/n1")
    (change,) = changes(page)
    assert (change.method, change.path, change.body) == ("PATCH", NODE, {"spec": {"unschedulable": True}})
    # The page's own token, and in the same request, which the audit log keeps, for whom.
    assert change.headers["authorization"] == "Bearer t"
    assert change.headers["user-agent"] == "tranche-dashboard (for ana%40example.org)"
    # It was asked anew about exactly that, for him and his groups, right before.
    question = {
        "user": "ana@example.org",
        "groups": ["ops", "system:authenticated"],
        "resourceAttributes": CORDON_IT,
    }
    assert page.people.questions[asked_before:].count(question) >= 1
    order: list[Seen] = []
    page.api.change(lambda server: order.extend(each for each in server.requests if each.method in ("POST", "PATCH")))
    before = order[[each.method for each in order].index("PATCH") - 1]
    assert (before.path, before.body["spec"]) == (ACCESS_REVIEWS, question)
    (event,) = events(page)
    assert event["message"] == "Cordon node n1: done by ana@example.org (named by a proxy) from the dashboard"


def test_a_share_is_taken_back_by_its_pods_uid_and_the_plan_is_the_one_that_was_seen(page: ServedClusterPage) -> None:
    fields = fields_of(page.ask(RELEASE, **named("ana", "blue")))
    page.api.change(lambda server: server.put(POD, {"metadata": {"uid": "later"}}))
    moved = send(page, fields, **named("ana", "blue"))
    assert moved.status == 409
    assert "the cluster has changed" in moved.text
    assert changes(page) == []
    assert send(page, fields_of(moved), **named("ana", "blue")).status == 303
    (change,) = changes(page)
    assert (change.method, change.path, change.body["preconditions"]) == ("DELETE", POD, {"uid": "later"})
    assert change.headers["user-agent"] == "tranche-dashboard (for ana)"
    asked = [each["resourceAttributes"] for each in page.people.questions if each["user"] == "ana"]
    for verb in ("get", "delete"):
        assert {"verb": verb, "resource": "pods", "namespace": "blue", "name": "blue-train-0"} in asked
    assert events(page)[0]["involvedObject"]["name"] == "blue-train-0"


def test_who_may_not_gets_no_form_and_the_form_of_somebody_else_does_nothing(page: ServedClusterPage) -> None:
    for address, what in ((CORDON, "patch nodes n1"), (RELEASE, "get pods blue-train-0 in blue")):
        shown = page.ask(address, **named("nils"))
        assert f"You have no permission to {what}." in shown.text
        assert fields_of(shown) == {}
    fields = fields_of(page.ask(CORDON, **named("ana", "ops")))
    assert send(page, fields, **named("nils")).status == 409
    assert changes(page) == []


def test_what_is_another_namespaces_is_not_taken(page: ServedClusterPage) -> None:
    hidden = page.ask(THEIRS, **named("ana", "blue"))
    assert (hidden.status, "a namespace that you have no permission to see" in hidden.text) == (400, True)
    # Who sees its name may not take it either: his right is one of blue alone.
    seen = page.ask(THEIRS, **named("zoe"))
    assert (seen.status, fields_of(seen)) == (400, {})
    assert "no permission to get pods zebra-train-1 in zebra" in seen.text
    assert page.ask("/act?kind=cordon&node=n2", **named("ana", "blue")).status == 400
    assert changes(page) == []


def test_a_right_that_was_taken_since_the_plan_was_seen_counts_no_more(page: ServedClusterPage) -> None:
    fields = fields_of(page.ask(CORDON, **named("ana", "ops")))
    page.api.change(lambda server: page.people.rights.discard(("@ops", "patch", "nodes", "")))
    refused = send(page, fields, **named("ana", "ops"))
    assert (refused.status, "You have no permission to patch nodes n1." in refused.text) == (403, True)
    assert changes(page) == []


@pytest.mark.parametrize("now", ["", "sre", "system:masters"])
def test_whose_groups_have_changed_since_the_plan_sees_it_anew(page: ServedClusterPage, now: str) -> None:
    page.people.let("@sre", "list pods", "list nodes", "patch nodes")
    page.people.let("ana", "list pods", "list nodes")
    fields = fields_of(page.ask(CORDON, **named("ana", "ops")))
    again = send(page, fields, **named("ana", now))
    assert again.status == (403 if now == "system:masters" else 409)
    assert bool(fields_of(again)) is (now == "sre")
    assert changes(page) == []
    if now == "sre":
        assert send(page, fields_of(again), **named("ana", "sre")).status == 303


def _answered(**status: object) -> Callable[[FakeApiServer], None]:
    def change(server: FakeApiServer) -> None:
        server.reviews[ACCESS_REVIEWS] = lambda body: dict(status)

    return change


def _refused(code: int, body: Json) -> Callable[[FakeApiServer], None]:
    return lambda server: server.refusals.update({("POST", "/subjectaccessreviews"): (code, body)})


def _silent(server: FakeApiServer) -> None:
    server.silent = lambda seen: (
        seen.path == ACCESS_REVIEWS and seen.body["spec"]["resourceAttributes"]["verb"] == "patch"
    )


@pytest.mark.parametrize(
    "trouble",
    [
        _refused(500, {"message": "etcd is gone"}),
        _refused(201, {"status": {"allowed": True}}),
        _refused(
            201,
            {
                "kind": "SubjectAccessReview",
                "spec": {"user": "olga", "resourceAttributes": CORDON_IT},
                "status": {"allowed": True},
            },
        ),
        _answered(allowed=True, denied=True),
        _answered(allowed=True, evaluationError="a webhook has not answered"),
        _answered(allowed="true"),
        _silent,
    ],
    ids=["an error", "no review", "somebody else's", "denied", "not evaluated", "not a yes", "silence"],
)
def test_without_a_plain_yes_of_now_nothing_is_done(
    page: ServedClusterPage, trouble: Callable[[FakeApiServer], None]
) -> None:
    """What was answered for the plan a moment before, and is remembered for what he sees, does not count."""
    fields = fields_of(page.ask(CORDON, **named("ana", "ops")))
    assert fields
    page.api.change(trouble)
    assert send(page, fields, **named("ana", "ops")).status == 403
    assert changes(page) == []
    assert events(page) == []


@pytest.mark.parametrize(
    "forged",
    [
        {"X_Remote_User": "ana", "X_Remote_Group": "ops"},
        named("ana", "ops", secret="0123456789-012345678"),
        named("ana", "ops", secret=f"{SECRET}x"),
        {**named("ana", "ops"), "Authorization": "Bearer t-olga"},
        {"X_Remote_Group": "ops", "Authorization": "Bearer t-olga"},
        named("system:admin", "ops"),
        named("ana", "system:masters"),
        {},
    ],
)
def test_whoever_has_not_the_proxys_secret_acts_for_nobody(page: ServedClusterPage, forged: dict[str, Any]) -> None:
    fields = fields_of(page.ask(CORDON, **named("ana", "ops")))
    assert send(page, fields, **forged).status in (401, 403)
    assert page.ask(CORDON, **forged).status in (401, 403)
    assert changes(page) == []


def test_no_form_counts_from_elsewhere_or_twice_or_for_another_plan(page: ServedClusterPage) -> None:
    """The browser sends what the proxy knows its viewer by with every site's form."""
    proxied = named("ana", "ops")
    fields = fields_of(page.ask(CORDON, **proxied))
    assert send(page, fields, **{**proxied, "Origin": "https://evil.example"}).status == 403
    assert send(page, fields, **{**proxied, "Sec_Fetch_Site": "same-site"}).status == 403
    assert page.ask("/act", method="POST", form=fields, **proxied).status == 403
    assert send(page, {**fields, "key": "x"}, **proxied).status == 409
    assert send(page, {**fields, "node": "n2"}, **proxied).status == 409
    assert changes(page) == []
    assert send(page, fields, **proxied).status == 303
    assert send(page, fields, **proxied).status in (400, 409)
    assert len(changes(page)) == 1


def test_who_shows_a_token_still_acts_with_it_alone(page: ServedClusterPage) -> None:
    fields = fields_of(page.ask(CORDON, "t-olga"))
    given: dict[str, Any] = {"Origin": f"http://{page.host}"}
    assert page.ask("/act", "t-olga", method="POST", form=fields, **given).status == 303
    (change,) = changes(page)
    assert (change.headers["authorization"], change.headers["user-agent"]) == ("Bearer t-olga", "tranche")


def test_a_page_that_was_not_told_so_does_nothing_for_whom_a_proxy_names(tmp_path: Path) -> None:
    with served(tmp_path) as page:
        for address in (CORDON, RELEASE):
            shown = page.ask(address, **named("ana", "ops"))
            assert (shown.status, fields_of(shown)) == (400, {})
            assert "passes on no token" in shown.text
        fields = fields_of(page.ask(CORDON, "t-olga"))
        assert send(page, fields, **named("olga", "ops")).status == 400
        assert changes(page) == []


def test_you_are_who_kubernetes_is_asked_about_and_are_told_what_you_can_do(tmp_path: Path) -> None:
    by_proxy: dict[str, Any] = {
        "X_Tranche_Proxy_Secret": SECRET,
        "X_Remote_User": "jürgen".encode().decode("latin-1"),
        "X_Remote_Group": "blüe, ops".encode().decode("latin-1"),
    }
    for options, said in (((), "passes on no token"), (("--proxy-act",), "with its own account")):
        with served(tmp_path, *options) as page:
            page.people.let("jürgen", "list pods", namespaces=["zebra"])
            shown = parsed(page.ask("/you", **by_proxy).text)
            # A comma divides nothing: he is in one group of that name, and not in ops.
            asked = {(each["user"], tuple(each["groups"])) for each in page.people.questions}
            assert ("jürgen", ("blüe, ops", "system:authenticated")) in asked
            assert {"user": "jürgen", "signed in with": "a proxy, which names you", "nodes": "some"}.items() <= figures(
                shown
            ).items()
            assert figures(shown)["names of namespaces"] == "zebra"
            groups = [text_of(each) for each in shown.iter("li") if each.find("code") is not None]
            assert groups == ["blüe, ops", "system:authenticated"]
            assert said in text_of(shown)
            assert "/leave" not in page.ask("/you", **by_proxy).text
            nobody = figures(parsed(page.ask("/you", **named("eve")).text))
            assert (nobody["names of namespaces"], nobody["nodes"]) == ("none", "none")
            own = parsed(page.ask("/you", "t-olga").text)
            assert (figures(own)["signed in with"], "your own permissions" in text_of(own)) == ("a token", True)


@pytest.mark.parametrize("options", [("--proxy-act",), ("--proxy-act", "--act"), ("--proxy-act", "--proxy-secret=")])
def test_without_a_proxy_that_is_trusted_or_without_acting_it_is_refused(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("""{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],
        clusters: [{name: k, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u, user: {token: t}}]}""")
    chosen = [each + str(tmp_path / "secret") if each.endswith("=") else each for each in options]
    command = [*TRANCHE, "cluster-dashboard", f"--kubeconfig={kubeconfig}", "--port=0", "--health-port=0", *chosen]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, "--proxy-act requires --act and --proxy-secret" in found.stderr) == (2, True)


class Beside:
    """What acts in this process beside an API server, for viewers whom a proxy names."""

    def __init__(self, server: FakeApiServer, connection: ApiConnection) -> None:
        self.server = server
        self.people = People()
        self.people.serve(server)
        self.reviews = AccessReviewClient(connection, clock=lambda: 0.0)
        fleets = FleetReader(connection, "tranche-system", clock=lambda: 0.0)
        keys = FormKeyStore(b"secret", clock=lambda: 0.0, new_id=lambda: "id")
        events = KubeClient(connection)
        own = ApiServer(server.url, token=lambda: "own")
        self.acts = ClusterActionHandler(own, self.reviews, fleets, keys, events, for_proxied=True)


def beside(act: Callable[[Beside], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with api_server() as server:
            connection = ApiConnection(ApiServer(server.url))
            try:
                await patiently(act(Beside(server, connection)))
            finally:
                await connection.aclose()

    asyncio.run(run())


def test_what_is_asked_for_a_deed_is_asked_each_time() -> None:
    async def act(it: Beside) -> None:
        right = RbacPermission("patch", "nodes", name="n1")
        it.people.let("ana", "patch nodes")
        assert await it.reviews.may(ANA, right)
        assert [await it.reviews.may_now(ANA, right) for _ in range(3)] == [True] * 3
        assert len(it.people.asked) == 4
        it.people.rights.clear()
        assert await it.reviews.may(ANA, right)
        assert not await it.reviews.may_now(ANA, right)

    beside(act)


def test_a_late_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_reviews, "NOW_SECONDS", 0.05)

    async def act(it: Beside) -> None:
        it.people.let("ana", "patch nodes")
        it.server.silent = lambda seen: True
        right = RbacPermission("patch", "nodes", name="n1")
        with pytest.raises(KubernetesUnavailable):
            await it.reviews.may_now(ANA, right)
        account = it.acts.account(ANA)
        assert "cannot check whether" in await account.refuses([right])

    beside(act)


def test_what_was_done_before_a_refusal_is_told_of_and_nothing_is_done_without_every_right() -> None:
    pods = [KubePod(PodRef("blue", each), f"uid-{each}") for each in ("one", "two", "three")]
    plan = release_plan(ClusterAction("release", "n1", share="a0"), pods)

    async def act(it: Beside) -> None:
        for each in pods:
            it.server.put(f"/api/v1/namespaces/blue/pods/{each.ref.name}", {"metadata": {"uid": each.uid}})
        it.people.let("ana", "delete pods", namespaces=["green"])
        with pytest.raises(KubernetesForbidden, match="You have no permission to delete pods one in blue"):
            await it.acts.act(ANA, plan)
        assert not any(each.method == "DELETE" for each in it.server.requests)
        it.people.let("ana", "delete pods", namespaces=["blue"])
        it.server.refusals[("DELETE", "/two")] = (403, {"message": "a policy says no"})
        with pytest.raises(KubernetesForbidden, match="a policy says no"):
            await it.acts.act(ANA, plan)
        told = [each for path, each in it.server.objects.items() if "/events/" in path]
        assert [each["involvedObject"]["name"] for each in told] == ["one"]
        assert "done by ana (named by a proxy) from" in told[0]["message"]

    beside(act)


@pytest.mark.parametrize("user", ["ana)\r\nX-Evil: 1", "ana; (x) \u00e4\U0001f600", "a b%c"])
def test_every_name_is_one_word_of_the_audit_log(user: str) -> None:
    async def act(it: Beside) -> None:
        it.server.put("/api/v1/nodes/n1", {})
        connection = it.acts.account(KubeUser(user)).connect()
        try:
            await connection.ask("look", "GET", "/api/v1/nodes/n1")
        finally:
            await connection.aclose()
        said = it.server.requests[-1].headers["user-agent"]
        assert said.startswith("tranche-dashboard (for ")
        assert said.isascii()
        assert not set(said.removeprefix("tranche-dashboard (for ").removesuffix(")")) & set(" ()\r\n")
        assert "x-evil" not in it.server.requests[-1].headers
        with pytest.raises(UsageError, match="too long for an audit log"):
            it.acts.account(KubeUser(user * 300))

    beside(act)


def test_only_a_yes_to_the_question_is_a_yes() -> None:
    question = ANA.question(RbacPermission("delete", "pods", "blue", "one"))
    yes = {**question, "status": {"allowed": True}}
    assert plainly_allowed(question, yes)
    assert plainly_allowed(question, {**yes, "metadata": {}, "spec": {**question["spec"], "more": 1}})
    assert plainly_allowed(question, {**yes, "status": {"allowed": True, "denied": False, "evaluationError": ""}})
    for right in (
        RbacPermission("get", "pods", "blue", "one"),
        RbacPermission("delete", "pods", "zebra", "one"),
        RbacPermission("delete", "pods", "blue", "two"),
        RbacPermission("delete", "nodes", "blue", "one"),
    ):
        assert not plainly_allowed(ANA.question(right), yes)
    assert not plainly_allowed(
        KubeUser("eve", ANA.groups).question(RbacPermission("delete", "pods", "blue", "one")), yes
    )
    assert not plainly_allowed(KubeUser("ana", ("ops",)).question(RbacPermission("delete", "pods", "blue", "one")), yes)
    strange: list[Any] = [None, {}, [], {"allowed": 1}, {"allowed": True, "denied": "no"}]
    for status in strange:
        assert not plainly_allowed(question, {**yes, "status": status})
