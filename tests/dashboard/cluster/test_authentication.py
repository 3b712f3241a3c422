"""Whose requests are heard, and as whom they come: by headers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.dashboard.access import RefusalReason
from tranche.dashboard.cluster.authentication import (
    KubeUser,
    RequestAuthenticator,
    RequestCredentials,
    TrustedProxySettings,
    reviewed_viewer,
    session_cookie,
)
from tranche.kubernetes.api.objects import RbacPermission

SECRET = "0123456789abcdef-proxy"
OPEN = RequestAuthenticator(frozenset({"gpus.example.org"}))
PROXIED = RequestAuthenticator(proxy=TrustedProxySettings(SECRET))


def refused(found: RequestCredentials | RefusalReason) -> int:
    assert isinstance(found, RefusalReason), found
    return int(found.status)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"host": "gpus.example.org"}, None),
        ("GET", {"host": "GPUS.example.org:8443"}, None),
        ("GET", {"host": "127.0.0.1:8899"}, None),
        ("GET", {"host": "[::1]:8899"}, None),
        ("GET", {"host": "evil.example"}, 421),
        ("GET", {"host": "10.0.0.7:8899"}, 421),
        ("GET", {}, 421),
        ("POST", {"host": "gpus.example.org", "origin": "https://gpus.example.org"}, None),
        ("POST", {"host": "gpus.example.org", "origin": "http://gpus.example.org"}, None),
        (
            "POST",
            {
                "host": "gpus.example.org",
                "origin": "http://gpus.example.org",
                "cookie": "a=b; __Host-tranche-cluster=x",
            },
            403,
        ),
        (
            "POST",
            {"host": "gpus.example.org", "origin": "https://gpus.example.org", "cookie": "__Host-tranche-cluster=x"},
            None,
        ),
        ("POST", {"host": "127.0.0.1:8899", "origin": "http://127.0.0.1:8899"}, None),
        ("POST", {"host": "127.0.0.1:8899", "origin": "https://127.0.0.1:8899"}, 403),
        ("GET", {"host": "localhost:8899", "origin": "https://localhost:8899"}, 403),
        ("POST", {"host": "gpus.example.org"}, 403),
        ("POST", {"host": "gpus.example.org", "origin": "https://evil.example"}, 403),
        ("POST", {"host": "gpus.example.org", "origin": "null"}, 403),
        ("GET", {"host": "gpus.example.org", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        (
            "GET",
            {
                "host": "gpus.example.org",
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "document",
            },
            None,
        ),
        (
            "GET",
            {
                "host": "gpus.example.org",
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "iframe",
            },
            403,
        ),
    ],
)
def test_only_our_own_pages_may_ask(method: str, headers: dict[str, str], status: int | None) -> None:
    found = OPEN.strange(method, headers)
    assert (None if found is None else int(found.status)) == status


def test_a_token_or_a_session_says_who_asks() -> None:
    assert OPEN.presented([("authorization", "Bearer abc")]) == RequestCredentials(token="abc")
    assert OPEN.presented([("cookie", "a=b; tranche-cluster=xyz")]) == RequestCredentials(session="xyz")
    both = [("cookie", "tranche-cluster=planted"), ("cookie", "__Host-tranche-cluster=mine")]
    assert OPEN.presented(both) == RequestCredentials(session="mine")
    assert OPEN.presented([]) == RequestCredentials()
    assert refused(OPEN.presented([("authorization", "Basic abc")])) == 401
    assert refused(OPEN.presented([("authorization", "Bearer a"), ("authorization", "Bearer b")])) == 401


ONCE = {
    "token": [("authorization", "Bearer t")],
    "session": [("cookie", "a=b; tranche-cluster=xyz")],
    "secure session": [("cookie", "__Host-tranche-cluster=xyz")],
    "proxy": [("x-tranche-proxy-secret", SECRET), ("x-remote-user", "ana")],
}


@pytest.mark.parametrize("first", ONCE)
@pytest.mark.parametrize("second", ONCE)
def test_whoever_says_twice_who_he_is_is_nobody(first: str, second: str) -> None:
    both = [*ONCE[first], *ONCE[second]]
    assert not isinstance(PROXIED.presented(ONCE[first]), RefusalReason)
    # Of the two cookies the one that only this host can have given counts: a neighbour may have planted the other.
    if {first, second} == {"session", "secure session"}:
        assert PROXIED.presented(both) == RequestCredentials(session="xyz")
    else:
        assert refused(PROXIED.presented(both)) == 401
    assert refused(PROXIED.presented([("cookie", "tranche-cluster=a; x=y;tranche-cluster=a")])) == 401
    assert OPEN.sessions([("cookie", "tranche-cluster=a; tranche-cluster=b;c=d")]) == {"a", "b"}


def test_without_a_trusted_proxy_its_headers_say_nothing() -> None:
    assert OPEN.presented([("x-remote-user", "root"), ("x-tranche-proxy-secret", SECRET)]) == RequestCredentials()


def test_a_trusted_proxy_names_its_users() -> None:
    headers = [
        ("x-tranche-proxy-secret", SECRET),
        ("x-remote-user", "ana"),
        ("x-remote-group", "blue"),
        ("x-remote-group", "ops"),
    ]
    assert PROXIED.presented(headers) == RequestCredentials(
        viewer=KubeUser("ana", ("blue", "ops", "system:authenticated"))
    )
    assert refused(PROXIED.presented([*headers, ("authorization", "Bearer t")])) == 401
    # Names are UTF-8, and nothing of them is taken for white space that HTTP does not.
    for name in ("jürgen", "voilà", "ana\u00a0", "\u00a0system:masters"):
        sent = [("x-tranche-proxy-secret", SECRET), ("x-remote-user", f" {name.encode().decode('latin-1')}\t")]
        assert PROXIED.presented(sent) == RequestCredentials(viewer=KubeUser(name, ("system:authenticated",)))
    # Without the proxy there is the token, and the session.
    assert PROXIED.presented([("authorization", "Bearer t")]) == RequestCredentials(token="t")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("x-remote-user", "ana")], 401),
        ([("x-remote-group", "blue")], 401),
        ([("x-remote-user", "ana"), ("x-tranche-proxy-secret", "wrong")], 401),
        ([("x-remote-user", "ana"), ("x-tranche-proxy-secret", "")], 401),
        ([("x-remote-user", "ana"), ("x-tranche-proxy-secret", SECRET), ("x-tranche-proxy-secret", "x")], 401),
        ([("x-tranche-proxy-secret", SECRET)], 401),
        ([("x-remote-user", " "), ("x-tranche-proxy-secret", SECRET)], 401),
        ([("x-remote-user", "a"), ("x-remote-user", "b"), ("x-tranche-proxy-secret", SECRET)], 401),
        ([("x-remote-user", "j\u00fcrgen"), ("x-tranche-proxy-secret", SECRET)], 401),
        ([("x-remote-user", "ana"), ("x-remote-group", "\u00ff"), ("x-tranche-proxy-secret", SECRET)], 403),
        ([("x-remote-user", "a\x01b"), ("x-tranche-proxy-secret", SECRET)], 401),
        ([("x-remote-user", "a\x7f"), ("x-tranche-proxy-secret", SECRET)], 401),
        ([("x-remote-user", "a\u202eb".encode().decode("latin-1")), ("x-tranche-proxy-secret", SECRET)], 401),
        ([("x-remote-user", "a\x85b".encode().decode("latin-1")), ("x-tranche-proxy-secret", SECRET)], 401),
        ([("x-remote-user", "ana"), ("x-remote-group", "o\x1fps"), ("x-tranche-proxy-secret", SECRET)], 403),
        ([("x-remote-user", "system:admin"), ("x-tranche-proxy-secret", SECRET)], 403),
        (
            [("x-remote-user", "ana"), ("x-remote-group", "system:masters"), ("x-tranche-proxy-secret", SECRET)],
            403,
        ),
        ([("x-remote-user", "ana"), ("x-remote-group", ""), ("x-tranche-proxy-secret", SECRET)], 403),
    ],
)
def test_a_proxy_that_does_not_show_its_secret_is_nobody(headers: list[tuple[str, str]], status: int) -> None:
    assert refused(PROXIED.presented(headers)) == status


def test_a_secret_that_can_be_guessed_opens_nothing() -> None:
    for secret in ("", "short"):
        weak = RequestAuthenticator(proxy=TrustedProxySettings(secret))
        assert refused(weak.presented([("x-remote-user", "ana"), ("x-tranche-proxy-secret", secret)])) == 401


def test_the_cookie_is_read_by_no_script_and_over_tls_sent_over_nothing_else() -> None:
    name, *flags = session_cookie("abc", "http://127.0.0.1:8899").split("; ")
    assert (name, set(flags)) == ("tranche-cluster=abc", {"Path=/", "HttpOnly", "SameSite=Strict"})
    name, *flags = session_cookie("abc", "https://gpus.example.org").split("; ")
    assert (name, set(flags)) == (
        "__Host-tranche-cluster=abc",
        {"Path=/", "HttpOnly", "SameSite=Strict", "Secure"},
    )
    assert session_cookie("", "").endswith("Max-Age=0")


def test_no_text_of_a_viewer_has_his_token() -> None:
    viewer = KubeUser("ana", token="secret-token")
    assert "secret-token" not in repr(viewer) + str(viewer) + repr(RequestCredentials(token="secret-token"))
    assert "secret-token" not in str(viewer.question(RbacPermission("list", "pods")))
    assert SECRET not in repr(PROXIED)


json_values = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["user", "username"]), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["authenticated", "user", "error"]), json_values))
def test_an_answer_that_does_not_name_somebody_names_nobody(status: dict[str, object]) -> None:
    found = reviewed_viewer({"status": status}, "t")
    if found is not None:
        user = status["user"]
        assert status["authenticated"] is True
        assert isinstance(user, dict)
        assert user["username"]
    assert reviewed_viewer({}, "t") is None
    assert reviewed_viewer({"status": {"authenticated": True}}, "t") is None
