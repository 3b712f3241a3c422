"""Other people's text, bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tranche.core.printable import shortened


@given(st.text(st.characters(exclude_characters="…")), st.integers(1, 40))
def test_a_shortened_text_is_no_longer_than_it_may_be_and_has_both_ends(text: str, most: int) -> None:
    found = shortened(text, most)
    assert len(found) <= most
    if len(text) <= most:
        assert found == text
        return
    first, _, last = found.partition("…")
    assert text.startswith(first)
    assert text.endswith(last)


def test_the_middle_is_left_out() -> None:
    assert shortened("0123456789", 7) == "0123…89"
    assert shortened("0123456789", 10) == "0123456789"
