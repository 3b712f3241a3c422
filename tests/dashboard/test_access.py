"""Who is let in."""

from __future__ import annotations

import os
import resource
import stat
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import needs_root
from tranche.core.errors import PermissionDenied
from tranche.dashboard.access import HEADERS, WITH_THE_TOKEN, RefusalReason, TokenAuthenticator, heard
from tranche.dashboard.cluster.authentication import RequestAuthenticator
from tranche.dashboard.frame import STYLE_HASH
from tranche.dashboard.token_file import read_token, token_path

GATE = TokenAuthenticator("a-token-that-nobody-guesses", 8899)
OURS = {"host": "127.0.0.1:8899"}


def cookie(gate: TokenAuthenticator) -> str:
    return gate.cookie("s").split(";")[0]


@pytest.mark.parametrize("host", ["127.0.0.1:8899", "localhost:8899", "[::1]:8899", "localhost:9000", "127.0.0.1"])
def test_this_machine_is_called_by_the_names_of_its_loopback(host: str) -> None:
    assert GATE.strange("GET", {"host": host}) is None
    assert GATE.strange("GET", {"host": host, "origin": f"http://{host}"}) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8899",
        "127.0.0.1.evil.example:8899",
        "10.0.0.7:8899",
        ":8899",
        "localhost:evil.com",
        "127.0.0.1:18899/evil",
        "127.0.0.1:",
        "localhost: 80",
        "localhost:+80",
        "localhost:65536",
        "localhost:80:80",
        "localhost:\u0664\u0662",
        "[::1]:x",
        "[::1]]",
    ],
)
def test_a_name_that_somebody_else_gave_this_machine_is_refused(host: str) -> None:
    for gate in (GATE, RequestAuthenticator()):
        refused = gate.strange("GET", {"host": host})
        assert refused is not None
        assert refused.status is HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize(
    "name", ["host", "origin", "authorization", "cookie", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"]
)
def test_what_says_who_asks_is_said_once(name: str) -> None:
    pair = (name.encode(), b"x")
    assert heard([pair, (b"accept", b"a"), (b"accept", b"b")]) == {name: "x", "accept": "b"}
    for other in (pair, (name.encode(), b"y")):
        refused = heard([pair, (b"accept", b"a"), other])
        assert isinstance(refused, RefusalReason)
        assert refused.status is HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:8899", "http://127.0.0.1:1", "http://localhost:8899", ""],
)
def test_a_page_of_another_site_is_refused(method: str, origin: str) -> None:
    refused = GATE.strange(method, {**OURS, "origin": origin})
    assert refused is not None
    assert refused.status is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_a_page_of_another_site_or_port_may_lead_here_and_load_nothing(site: str) -> None:
    said = {**OURS, "sec-fetch-site": site}
    led = {**said, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert GATE.strange("GET", led) is None
    assert GATE.strange("POST", {**led, "origin": "http://127.0.0.1:8899"}) is not None
    for other in (
        said,
        {**led, "sec-fetch-dest": "iframe"},
        {**said, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    ):
        refused = GATE.strange("GET", other)
        assert refused is not None
        assert refused.status is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_what_is_typed_in_and_our_own_pages_are_heard(site: str) -> None:
    assert GATE.strange("GET", {**OURS, "sec-fetch-site": site, "sec-fetch-mode": "cors"}) is None


def test_a_form_that_does_not_say_where_it_is_from_is_refused() -> None:
    assert GATE.strange("POST", OURS) is not None
    assert GATE.strange("POST", {**OURS, "origin": "http://127.0.0.1:8899"}) is None


def test_the_token_and_the_cookie_let_in_and_nothing_else() -> None:
    assert GATE.unknown({"authorization": f"Bearer {GATE.token}"}) is None
    assert GATE.unknown({"cookie": f"other=1; {cookie(GATE)}"}) is None
    for other in (TokenAuthenticator("another-token", 8899), TokenAuthenticator(GATE.token, 8900)):
        for sent in (cookie(other), cookie(other).replace(other.cookie_name, GATE.cookie_name)):
            refused = GATE.unknown({"cookie": sent})
            assert refused is not None
            assert refused.status is HTTPStatus.UNAUTHORIZED
    assert GATE.unknown({"cookie": f"{GATE.cookie_name}={GATE.token}"}) is not None
    assert GATE.unknown({"authorization": f"Basic {GATE.token}"}) is not None


def test_each_browser_has_a_session_of_its_own_that_it_cannot_choose() -> None:
    def session(cookie: str) -> str:
        return GATE.session_of({"cookie": cookie})

    one, other = (GATE.cookie(name).split(";")[0] for name in ("one", "other"))
    assert (session(one), session(other)) == ("one", "other")
    assert session(one.replace("=one.", "=other.")) == ""
    assert session(f"{GATE.cookie_name}=one") == session(f"{GATE.cookie_name}=one.") == ""
    assert GATE.session_of({"authorization": f"Bearer {GATE.token}"}) == WITH_THE_TOKEN


@given(st.dictionaries(st.sampled_from(["authorization", "cookie", "host", "origin"]), st.text()))
def test_no_header_breaks_the_gate(headers: dict[str, str]) -> None:
    assert GATE.unknown(headers) is not None
    GATE.strange("GET", headers)


def test_the_cookie_is_for_this_server_alone_and_tells_no_token() -> None:
    assert GATE.token not in GATE.cookie("s")
    assert GATE.cookie("s").split("; ")[1:] == ["Path=/", "HttpOnly", "SameSite=Strict"]


def test_no_script_but_ours_and_no_frame_around_us() -> None:
    policy = dict(each.strip().split(" ", 1) for each in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert {policy[each] for each in ("script-src", "img-src", "connect-src", "form-action")} == {"'self'"}
    assert policy["style-src"] == f"'self' {STYLE_HASH}"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_the_token_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "dashboard-token"
    token = read_token(path)
    assert len(token) >= 43
    assert read_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["dashboard-token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_token_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    read_token(path)
    path.chmod(mode)
    with pytest.raises(PermissionDenied, match="is not private to you"):
        read_token(path)


@needs_root
def test_a_token_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    read_token(path)
    os.chown(path, 65534, 65534)
    with pytest.raises(PermissionDenied, match="is not private to you"):
        read_token(path)


def test_neither_a_link_nor_a_pipe_nor_an_empty_file_is_a_token(tmp_path: Path) -> None:
    read_token(tmp_path / "token")
    (tmp_path / "link").symlink_to(tmp_path / "token")
    os.mkfifo(tmp_path / "pipe", 0o600)
    os.close(os.open(tmp_path / "empty", os.O_CREAT, 0o600))
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("link", "pipe", "empty", "folder"):
        with pytest.raises(PermissionDenied) as refused:
            read_token(tmp_path / name)
        assert f"rm {'-r ' * (name == 'folder')}{tmp_path / name}" in refused.value.hint


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 43, b"a" * 42, b"a" * 44, b"a" * 40 + b"&#+", b"a" * 40 + b"%2 ", b"a" * 43 + b"\n\n", b"a" * 5000],
)
def test_what_tranche_did_not_make_is_no_token(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(PermissionDenied, match="was not created by Tranche") as refused:
        read_token(path)
    assert f"rm '{path}'" in refused.value.hint


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(PermissionDenied, match="cannot be written"):
            read_token(tmp_path / "token")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_the_token_is_where_the_user_keeps_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert token_path() == tmp_path / "tranche/dashboard-token"
    assert token_path(acts=True) == tmp_path / "tranche/dashboard-act-token"
    monkeypatch.setenv("HOME", str(tmp_path))
    for none in ("", "relative/state", "./state"):
        monkeypatch.setenv("XDG_STATE_HOME", none)
        assert token_path() == tmp_path / ".local/state/tranche/dashboard-token"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert token_path() == tmp_path / ".local/state/tranche/dashboard-token"
