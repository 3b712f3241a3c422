"""The keys of forms: for one session, one action and one plan, once, and not for ever."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from tranche.dashboard.acting.forms import FormKeyStore

WORDS = st.text(max_size=5)
THREE = st.tuples(WORDS, WORDS, WORDS)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def keys_of(clock: Clock, secret: bytes = b"s") -> FormKeyStore:
    numbers = count()
    return FormKeyStore(secret, clock=clock, new_id=lambda: str(next(numbers)))


@given(THREE, THREE)
def test_a_key_is_for_what_it_was_made_for_and_counts_once(
    mine: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    keys = keys_of(Clock())
    key = keys.key(*mine)
    if other != mine:
        assert keys.spend(key, *other)
    assert keys.spend(key, *mine) == ""
    assert keys.spend(key, *mine) == "the form has already been sent"


@given(st.text())
def test_what_was_never_given_out_counts_for_nothing(key: str) -> None:
    assert keys_of(Clock()).spend(key, "a", "b", "c")


def test_another_servers_key_counts_for_nothing() -> None:
    assert keys_of(Clock()).spend(keys_of(Clock(), b"t").key("a", "b", "c"), "a", "b", "c")


def test_an_old_form_does_not_count_and_used_keys_are_forgotten_only_then() -> None:
    clock = Clock()
    keys = keys_of(clock)
    old, used = keys.key("a", "b", "c"), keys.key("a", "b", "c")
    clock.now += 3599
    assert keys.spend(used, "a", "b", "c") == ""
    clock.now += 0.5
    assert keys.spend(used, "a", "b", "c") == "the form has already been sent"
    clock.now += 1
    for key in (old, used):
        assert keys.spend(key, "a", "b", "c") == "the form is more than an hour old"


def test_only_so_many_forms_are_sent_within_an_hour() -> None:
    keys = keys_of(Clock())
    for _ in range(10_000):
        assert keys.spend(keys.key("a", "b", "c"), "a", "b", "c") == ""
    assert "too many" in keys.spend(keys.key("a", "b", "c"), "a", "b", "c")
