"""Certificates: what they say, and which of them are trusted."""

from __future__ import annotations

import os
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tranche.core.errors import TlsUnavailable
from tranche.kubernetes.webhook.identity import ServingCertificate, bundle_with, make_certificate, read_bundle

NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def made(name: str = "one", lifetime: timedelta = HOUR, now: datetime = NOW) -> ServingCertificate:
    return make_certificate(name, ["controller.tranche-system.svc"], now, lifetime)


def test_a_certificate_is_valid_from_an_hour_ago_and_for_the_names_it_was_made_for() -> None:
    certificate = made("tranche-agent-controller-5d8f7c9b4-x2x7k" * 2)
    (found,) = read_bundle(certificate.certificate)
    assert found.begins == (NOW - HOUR).timestamp()
    assert found.ends == (NOW + HOUR).timestamp() == certificate.expires.timestamp()
    assert found.name.endswith("x2x7k")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.load_into(context)
    assert "PRIVATE KEY" in certificate.key
    assert "PRIVATE KEY" not in certificate.certificate


def test_no_two_have_the_same_key_or_number() -> None:
    first, second = made(), made()
    assert first.key != second.key
    assert first.certificate != second.certificate


def test_nothing_of_a_key_stays_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made().load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "x/CN=y", "a\nb", "ü"])
def test_a_name_that_says_something_else_in_a_certificate_is_refused(name: str) -> None:
    with pytest.raises(TlsUnavailable, match="is not allowed in a certificate"):
        make_certificate(name, ["a"], NOW, HOUR)
    with pytest.raises(TlsUnavailable):
        make_certificate("a", [name], NOW, HOUR)


def test_a_machine_without_openssl_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TlsUnavailable) as caught:
        made()
    assert "install the package openssl" in caught.value.hint
    program = tmp_path / "openssl"
    program.write_text("#!/bin/sh\necho it is broken >&2; exit 1\n")
    program.chmod(0o755)
    with pytest.raises(TlsUnavailable, match="openssl req failed: it is broken"):
        made()
    assert shutil.which("openssl") == os.fspath(program)


CERTIFICATES = {
    (name, hours): made(name, timedelta(hours=hours), NOW).certificate
    for name in ("one", "two", "three")
    for hours in (1, 2, 3)
}
CHOSEN = st.lists(st.sampled_from(sorted(CERTIFICATES)), unique=True)


@given(CHOSEN, CHOSEN.map(lambda each: each[:2]), st.sampled_from([0, 1.5, 2.5]))
@settings(deadline=None)
def test_what_is_trusted(there: list[tuple[str, int]], own: list[tuple[str, int]], hours: float) -> None:
    now = (NOW + timedelta(hours=hours)).timestamp()
    before = "".join(CERTIFICATES[each] for each in there)
    mine = [CERTIFICATES[each] for each in own]
    after = bundle_with(before, mine, now)
    kept = read_bundle(after)
    assert all(each.ends > now for each in kept)
    assert {CERTIFICATES[each].strip() for each in own if each[1] > hours} <= {each.pem for each in kept}
    assert len({each.pem for each in kept}) == len(kept)
    foreign = {each.pem for each in kept} - {each.strip() for each in mine}
    for name in ("one", "two", "three"):
        of_one = [each for each in kept if each.name == name]
        assert len([each for each in of_one if each.pem in foreign]) <= 2
        # Nobody's certificates are left out for another replica's.
        valid = {key for key in there if key[0] == name and key[1] > hours}
        assert len(of_one) >= min(len(valid), 2)
    assert bundle_with(after, mine, now) == after


def test_of_very_many_the_oldest_go_and_ones_own_stays() -> None:
    others = [made(f"gone-{number}", now=NOW + timedelta(minutes=number)).certificate for number in range(20)]
    mine = made(now=NOW - timedelta(minutes=5)).certificate
    kept = read_bundle(bundle_with("".join(others), [mine], NOW.timestamp()))
    assert [each.name for each in kept] == [*(f"gone-{number}" for number in range(5, 20)), "one"]


def test_what_is_no_certificate_is_left_out() -> None:
    mine = made().certificate
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert bundle_with(f"somebody's words\n{broken}{mine}", [], NOW.timestamp()) == mine
    assert bundle_with("", [mine], NOW.timestamp()) == mine
