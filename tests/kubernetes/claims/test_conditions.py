"""What a claim asks of a device is read as it was written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tranche.kubernetes.claims.spec import DeviceCondition, read_conditions, write_conditions

WORDS = st.text(min_size=1, max_size=12)
CONDITIONS = st.builds(
    DeviceCondition,
    card_memory=st.none() | st.integers(min_value=0),
    isolations=st.frozensets(WORDS, max_size=3),
    not_mechanism=st.just("") | WORDS,
    model=st.just("") | WORDS,
)


@given(CONDITIONS, st.lists(st.text(max_size=12), max_size=2))
def test_what_is_written_is_read_and_words_of_others_are_named(wanted: DeviceCondition, others: list[str]) -> None:
    assert read_conditions([*write_conditions(wanted), *others]) == (wanted, tuple(others))


def test_the_forms_are_those_of_claims_that_are_there() -> None:
    wanted = DeviceCondition(40_960, frozenset(("hard", "soft")), "mps", "a100")
    assert list(write_conditions(wanted)) == [
        'device.attributes["gpu.tranche.dev"].cardMemoryMiB == 40960',
        'device.attributes["gpu.tranche.dev"].isolation in ["hard", "soft"]',
        'device.attributes["gpu.tranche.dev"].mechanism != "mps"',
        'device.attributes["gpu.tranche.dev"].model.lowerAscii().contains("a100")',
    ]
    assert list(write_conditions(DeviceCondition(isolations=frozenset(("hard",))))) == [
        'device.attributes["gpu.tranche.dev"].isolation == "hard"'
    ]
