"""Whose turn it is, as a pure decision; and a whole rollout played with it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import UsageError
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.rollout.ticket import (
    EVERY_NODE,
    GO_ON_ANNOTATION,
    LOST_SECONDS,
    UNTAKEN_SECONDS,
    LayoutChangeState,
    RolloutDecision,
    RolloutLimit,
    RolloutPermission,
    RolloutStatus,
    RolloutTicket,
    TicketState,
    busy_text,
    grants,
    held_up_text,
    next_ticket,
    parse_budget,
    read_ticket,
    ticket_name,
    write_ticket,
)

WAITING, GRANTED, CHANGING, FAILED = TicketState


def ticket(node: str, state: TicketState, *, at: int = 0, go_on: bool = False, message: str = "") -> RolloutTicket:
    return RolloutTicket(
        node, state, "all-1g", "d1", message, go_on, lease=Lease(ticket_name(node), created=f"{at:04}")
    )


@pytest.mark.parametrize(
    ("text", "fleet", "nodes"),
    [
        ("3", 100, 3),
        ("0", 100, 0),
        ("10%", 1000, 100),
        ("10%", 5, 1),
        ("34%", 3, 2),
        ("0%", 50, 0),
        ("100%", 7, EVERY_NODE),
    ],
)
def test_a_budget_is_a_number_or_a_part_rounded_up(text: str, fleet: int, nodes: int) -> None:
    assert parse_budget(text).nodes(fleet) == nodes
    assert str(parse_budget(text)) == text


def test_a_part_of_an_unknown_number_is_one_node() -> None:
    assert parse_budget("50%").nodes(None) == 1
    assert parse_budget("100%").nodes(None) == EVERY_NODE
    assert parse_budget("7").nodes(None) == 7


@pytest.mark.parametrize("text", ["", "-1", "1.5", "101%", "ten", "5 %", "%", "1e3", "9999999"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_budget(text)


def test_the_first_come_go_first_and_no_more_than_the_budget() -> None:
    tickets = [
        ticket("c", WAITING, at=3),
        ticket("a", WAITING, at=2),
        ticket("b", WAITING, at=1),
        ticket("z", CHANGING),
    ]
    found = grants(tickets, 3, {})
    assert [each.node for each in found.granted] == ["b", "a"]
    assert found.waiting == 1
    assert busy_text(found.busy) == "nodes a, b, z"
    full = grants(tickets, 1, {})
    assert full.granted == ()
    assert busy_text(full.busy) == "node z"
    assert grants(tickets, 0, {}).granted == ()
    assert busy_text([ticket(name, CHANGING) for name in "abcde"]) == "nodes a, b, c, and 2 more nodes"
    assert busy_text(()) == ""


def test_a_failed_node_holds_up_all_others_until_somebody_says_go_on() -> None:
    failed = ticket("f", FAILED, message="NVML: unknown error")
    found = grants([failed, ticket("a", WAITING)], 5, {})
    assert (found.granted, found.held_up_by, found.waiting) == ((), (failed,), 1)
    assert held_up_text(found.held_up_by) == "node f failed: NVML: unknown error"
    many = [ticket(f"f{number}", FAILED, message="x" * 900) for number in range(9)]
    assert len(held_up_text(many)) < 600
    assert held_up_text(many).endswith("x, and 6 more nodes")
    told = ticket("f", FAILED, go_on=True)
    assert [each.node for each in grants([told, ticket("a", WAITING)], 1, {}).granted] == ["a"]


def test_go_on_is_no_word_about_nodes_that_are_well() -> None:
    """Somebody may say it of all tickets at once; the budget holds all the same."""
    tickets = [ticket("z", CHANGING, go_on=True), *(ticket(name, WAITING, go_on=True) for name in "abc")]
    assert grants(tickets, 1, {}).granted == ()
    assert len(grants(tickets, 2, {}).granted) == 1
    assert len(grants(tickets, 1, {"z": LOST_SECONDS}).granted) == 1
    lease = Lease(ticket_name("a"), annotations={GO_ON_ANNOTATION: "yes"})
    granted = read_ticket(write_ticket(replace(tickets[1], state=GRANTED, lease=lease), node_uid=""))
    assert granted is not None
    assert not granted.go_on, "or the failure that comes next would stop nobody"


def test_a_node_that_is_heard_of_no_more_while_it_changes_holds_up_all_others() -> None:
    tickets = [ticket("gone", CHANGING), ticket("a", WAITING)]
    assert [each.node for each in grants(tickets, 2, {"gone": LOST_SECONDS - 1}).granted] == ["a"]
    found = grants(tickets, 2, {"gone": LOST_SECONDS})
    assert not found.granted
    assert held_up_text(found.held_up_by) == "node gone started to change and stopped reporting"


def test_a_turn_that_nobody_takes_is_taken_back_and_its_node_passed_over_until_it_is_heard_of() -> None:
    gone = ticket("gone", GRANTED, at=1)
    tickets = [gone, ticket("a", WAITING, at=2)]
    assert grants(tickets, 1, {"gone": UNTAKEN_SECONDS - 1}) == RolloutDecision(waiting=1, busy=(gone,))
    found = grants(tickets, 1, {"gone": UNTAKEN_SECONDS})
    assert (found.granted, found.taken_back, found.waiting) == ((), (gone,), 2)
    lease = replace(gone.lease, renewed="r1")
    back = write_ticket(replace(gone, state=WAITING, passed_over=True, lease=lease), node_uid="")
    passed = read_ticket(back)
    assert passed is not None
    assert [each.node for each in grants([passed, tickets[1]], 1, {}).granted] == ["a"]
    heard = read_ticket(replace(back, renewed="r2"))
    assert heard is not None
    assert [each.node for each in grants([heard, tickets[1]], 1, {}).granted] == ["gone"]


def test_a_ticket_is_what_its_lease_says_and_keeps_what_others_wrote_there() -> None:
    said = {GO_ON_ANNOTATION: "yes", "example.com/note": "mine"}
    lease = Lease(ticket_name("n1"), annotations=said, created="t", version="7")
    written = write_ticket(RolloutTicket("n1", FAILED, "all-1g", "d", "no room", lease=lease), node_uid="u1")
    assert written.annotations.items() >= said.items()
    assert (written.holder, written.owner_node, written.version) == ("failed", ("n1", "u1"), "7")
    again = read_ticket(written)
    assert again == RolloutTicket("n1", FAILED, "all-1g", "d", "no room", True, lease=written)
    assert read_ticket(Lease("tranche-layout.n1", "somebody")) is None
    assert len(ticket_name("n" * 253)) <= 253


def test_a_node_keeps_its_place_through_a_failure_and_another_layout() -> None:
    wanted, other = (
        RolloutStatus(LayoutChangeState.WANTED, "l", "d1"),
        RolloutStatus(LayoutChangeState.WANTED, "m", "d2"),
    )
    first = next_ticket("n", None, wanted)
    assert first is not None
    assert first.state is WAITING
    changing = ticket("n", CHANGING)
    failed = next_ticket("n", changing, RolloutStatus(LayoutChangeState.FAILED, "all-1g", message="no"))
    assert failed is not None
    assert (failed.state, failed.digest) == (FAILED, "d1")
    same = RolloutStatus(LayoutChangeState.FAILED, "all-1g", message="no")
    assert next_ticket("n", failed, same) is failed
    assert RolloutPermission(failed).allows("d1")
    assert not RolloutPermission(failed).allows("d2")
    changed = next_ticket("n", failed, other)
    assert changed is not None
    assert (changed.state, changed.digest) == (CHANGING, "d2")
    assert next_ticket("n", ticket("n", FAILED, go_on=True), other) is None
    assert next_ticket("n", changing, RolloutStatus(LayoutChangeState.DONE)) is None
    assert next_ticket("n", None, RolloutStatus(LayoutChangeState.DONE)) is None
    for state in (WAITING, GRANTED):
        assert next_ticket("n", ticket("n", state), RolloutStatus(LayoutChangeState.FAILED)) is None
        assert not RolloutPermission(ticket("n", state)).allows("d1")
    taken = next_ticket("n", ticket("n", GRANTED), RolloutStatus(LayoutChangeState.WANTED, "all-1g", "d1"))
    assert taken is not None
    assert taken.state is CHANGING


@given(seed=st.integers(0, 1 << 30), nodes=st.integers(1, 40), amount=st.integers(1, 60), percent=st.booleans())
def test_a_rollout_reaches_every_node_within_its_budget(seed: int, nodes: int, amount: int, percent: bool) -> None:
    dice = random.Random(seed)
    budget = RolloutLimit(amount, percent)
    limit = budget.nodes(nodes)
    state = {f"n{index}": ticket(f"n{index}", WAITING, at=dice.randrange(20)) for index in range(nodes)}
    done: list[str] = []
    for _ in range(20 * nodes):
        for each in grants(list(state.values()), limit, {}).granted:
            state[each.node] = ticket(each.node, CHANGING)
        changing = [each for each in state.values() if each.state is not WAITING and not each.go_on]
        assert len(changing) <= limit
        if not state:
            break
        chosen = dice.choice(changing)
        if dice.random() < 0.1:
            state[chosen.node] = ticket(chosen.node, FAILED)
            assert not grants(list(state.values()), limit, {}).granted
            state[chosen.node] = ticket(chosen.node, FAILED, go_on=True)
        else:
            done.append(state.pop(chosen.node).node)
        state = {node: each for node, each in state.items() if not each.go_on}
    assert not state
