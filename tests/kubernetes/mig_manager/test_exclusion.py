"""Two managers of one node notice each other, neither acts, and the one that stays takes over when the other is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.kubernetes.mig_manager.exclusion import ANSWER_SECONDS, CLAIM_PREFIX, Memory, stand, withdrawal


class Node:
    """The annotations that managers share, and what each remembers of its last look."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {"other.example/thing": "1"}
        self.memory: dict[str, Memory] = {}

    def start(self, name: str) -> None:
        self.memory[name] = {}

    def look(self, name: str, now: float) -> tuple[str, ...]:
        """As the manager does: write, then judge by what is there after the write."""
        standing = stand(self.annotations, name, now, self.memory[name])
        if standing.annotations:
            for key, value in standing.annotations.items():
                if value is None:
                    self.annotations.pop(key, None)
                else:
                    self.annotations[key] = value
            standing = stand(self.annotations, name, now, standing.memory)
        self.memory[name] = standing.memory
        return standing.rivals


def test_one_manager_writes_its_claim_once_and_never_again() -> None:
    node = Node()
    node.start("a")
    assert node.look("a", 0) == ()
    written = dict(node.annotations)
    node.start("a")  # restarted
    for now in (500, 5_000, 50_000):
        assert node.look("a", now) == ()
    assert node.annotations == written


def test_a_second_manager_is_seen_by_both() -> None:
    node = Node()
    node.start("a")
    node.look("a", 0)
    node.start("b")
    for now in range(1000, 1200, 5):
        assert node.look("b", now) == ("a",)
        assert node.look("a", now) == ("b",)


def test_who_does_not_answer_is_gone_and_the_other_takes_over() -> None:
    node = Node()
    node.start("a")
    node.look("a", 0)
    node.start("b")
    assert node.look("b", 1000) == ("a",)
    assert node.look("b", 1000 + ANSWER_SECONDS - 1) == ("a",)
    assert node.look("b", 1000 + ANSWER_SECONDS + 1) == ()
    assert CLAIM_PREFIX + "a" not in node.annotations


def test_who_withdraws_is_gone_at_once() -> None:
    node = Node()
    for name in ("a", "b"):
        node.start(name)
        node.look(name, 0)
    assert node.look("b", 1) == ("a",)
    for key in withdrawal("a"):
        node.annotations.pop(key)
    assert node.look("b", 2) == ()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "yes", '{"renewals": "x"}', '{"renewals": 1e999}', '{"renewals":-1}', "[" * 100_000]
)
def test_a_claim_that_cannot_be_read_does_not_stand_for_ever(text: str) -> None:
    node = Node()
    node.annotations[CLAIM_PREFIX + "z"] = text
    node.start("a")
    assert node.look("a", 0) == ("z",)
    assert node.look("a", ANSWER_SECONDS + 1) == ()


@pytest.mark.parametrize("text", ["", "x", '{"renewals":"x"}', '{"renewals":41}', '{"since":1,"renewed":9e15}'])
def test_a_renewal_reads_otherwise_than_what_stood_there(text: str) -> None:
    node = Node()
    node.annotations |= {CLAIM_PREFIX + "a": text, CLAIM_PREFIX + "b": ""}
    node.start("a")
    node.look("a", 0)
    assert node.annotations[CLAIM_PREFIX + "a"] != text


def test_one_whose_clock_starts_anew_still_sees_the_other_go() -> None:
    node = Node()
    for name in ("a", "b"):
        node.start(name)
        node.look(name, 50_000)
    node.start("b")  # after a restart of the machine its clock begins at nought
    assert node.look("b", 10) == ("a",)
    assert node.look("b", 10 + ANSWER_SECONDS) == ()


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["look", "look", "look", "start", "end"])),
        max_size=60,
    )
)
def test_never_do_two_live_managers_both_believe_to_be_alone(moves: list[tuple[str, str]]) -> None:
    node, now = Node(), 0.0
    alone: set[str] = set()
    for name, move in moves:
        now += 1.0
        if move == "start":
            node.start(name)
            alone.discard(name)
        elif move == "end":
            node.memory.pop(name, None)
            alone.discard(name)
        elif name in node.memory:
            alone.discard(name)
            if not node.look(name, now):
                alone.add(name)
        # Everybody who lives looks at least every 5 seconds while there is another: here, at every second.
        for living in list(node.memory):
            if living in alone and node.look(living, now):
                alone.discard(living)
        assert len(alone) <= 1
