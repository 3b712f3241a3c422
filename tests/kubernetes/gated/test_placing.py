"""Rounds of the placer over an API server that loses requests and answers: nothing is ever given twice, and all is given."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.gated.placing_world import PlacingWorld
from tests.strategies import node_views
from tests.support.length import cases
from tranche.core.allocation import NodeView
from tranche.core.request import parse_request
from tranche.kubernetes.gated.leases import ChosenShare
from tranche.kubernetes.gated.scheduler.placing import PlacingClient, PlacingRunner

REQUESTS = [
    parse_request(gpu_memory="4Gi"),
    parse_request(gpu_memory="9Gi"),
    parse_request(gpu="0.5"),
    parse_request(mig_profile="2g.10gb"),
    parse_request(gpus="1"),
    parse_request(gpu_memory="2Gi", isolation="any"),
]


def runner(world: PlacingWorld) -> PlacingRunner:
    return PlacingRunner(cast(PlacingClient, world))


STEPS = ["a", "b", "hear a", "hear b", "end", "take up", "take up", "tell", "add", "add"]


@settings(max_examples=cases(300))
@given(
    seed=st.integers(0, 2**32),
    views=st.lists(node_views(max_gpus=2), min_size=1, max_size=2),
    steps=st.lists(st.sampled_from(STEPS), min_size=20, max_size=80),
)
def test_whatever_is_lost_and_whoever_else_chooses_no_share_is_given_twice(
    seed: int, views: list[NodeView], steps: list[str]
) -> None:
    chance = random.Random(seed)
    bare = {f"n{number}": replace(view, allocations=()) for number, view in enumerate(views)}
    world = PlacingWorld(chance, bare, faults=chance.choice([0.0, 0.1, 0.4]))
    for node in bare:
        world.tell(node)
    controllers = {name: (runner(world), [world.now()]) for name in "ab"}
    count = 0

    async def play() -> None:
        nonlocal count
        for step in steps:
            node = chance.choice(list(bare))
            match step:
                case "add":
                    count += 1
                    world.add_pod(f"u{count:03}", chance.choice(REQUESTS))
                case "end" if world.pods:
                    world.end_pod(chance.choice(list(world.pods)))
                case "take up":
                    world.take_up(node)
                case "tell":
                    world.tell(node)
                case "hear a" | "hear b":
                    controllers[step[-1]][1][0] = world.now()
                case "a" | "b":
                    placing, heard = controllers[step]
                    await placing.round(heard[0])
                case _:
                    pass
            world.check()
        # When the faults end, one controller that hears all brings everything to its end.
        world.faults = 0.0
        for _ in range(6):
            for node in bare:
                world.take_up(node)
                world.tell(node)
            done = await controllers["a"][0].round(world.now())
        for node in bare:
            world.take_up(node)
        world.check()
        waiting = {each.pod.uid for each in done.waiting}
        assert {uid for uid, pod in world.pods.items() if pod.waits} == waiting
        # Whoever was let go has its share, and nothing is kept for anybody else.
        for node, lease in world.now().choices.items():
            assert set(lease.choices) == set(world.held.get(node, {}))

    asyncio.run(play())


def test_a_controller_that_is_late_cannot_give_what_another_has_given() -> None:
    world, request = PlacingWorld(random.Random(1), {"n": a100s(1)}, faults=0.0), parse_request(mig_profile="3g.20gb")
    world.tell("n")
    world.add_pod("u2", request)
    early = world.now()
    world.add_pod("u1", request)
    late = world.now()
    asyncio.run(runner(world).round(early))
    world.take_up("n")
    done = asyncio.run(runner(world).round(late))  # it still believes that nothing was chosen
    assert (done.let_go, done.unwritten) == (set(), {"n"})
    world.take_up("n")
    world.check()
    asyncio.run(runner(world).round(world.now()))
    world.take_up("n")
    world.check()
    assert len(world.held["n"]) == 2


def test_a_crowd_is_chosen_for_with_one_write_for_each_node() -> None:
    world = PlacingWorld(random.Random(1), {"p4d": a100s(8)}, faults=0.0)
    world.tell("p4d")
    for number in range(58):
        world.add_pod(f"u{number:03}", parse_request(gpu_memory="4Gi"))
    done = asyncio.run(runner(world).round(world.now()))
    assert (len(done.let_go), len(done.waiting), len(done.written)) == (56, 2, 1)
    world.take_up("p4d")
    world.check()
    assert len(world.held["p4d"]) == 56


def test_a_choice_goes_only_when_the_api_server_says_that_its_pod_is_over() -> None:
    world = PlacingWorld(random.Random(1), {"n": a100s(1)}, faults=0.0)
    world.tell("n")
    world.add_pod("u1", parse_request(gpu_memory="4Gi"))
    before = world.now()
    asyncio.run(runner(world).round(before))
    # A controller that has not heard of the pod yet must not forget what was chosen for it.
    late = replace(world.now(), pods={})
    asyncio.run(runner(world).round(late))
    assert set(world.now().choices["n"].choices) == {"u1"}
    world.end_pod("u1")
    asyncio.run(runner(world).round(world.now()))
    assert not world.now().choices["n"].choices


def test_a_pod_that_was_chosen_for_and_not_let_go_is_let_go_with_that_choice() -> None:
    world = PlacingWorld(random.Random(1), {"n": a100s(1)}, faults=0.0)
    world.tell("n")
    world.add_pod("u1", parse_request(gpu_memory="4Gi"))
    asyncio.run(runner(world).round(world.now()))
    (kept,) = world.now().choices["n"].choices.values()
    assert isinstance(kept, ChosenShare)
    world.add_pod("u1", parse_request(gpu_memory="4Gi"))  # as if the patch had never arrived
    asyncio.run(runner(world).round(world.now()))
    assert not world.pods["u1"].waits
    assert world.now().choices["n"].choices == {"u1": kept}


def test_what_was_chosen_for_a_pod_that_can_never_start_is_taken_back_and_the_pod_says_why() -> None:
    world = PlacingWorld(random.Random(1), {"n": a100s(1)}, faults=0.0)
    world.tell("n")
    never = "container 'main' asks for 2 of tranche.dev/share"

    def choices() -> set[str]:
        return set(world.now().choices["n"].choices)

    for uid in ("gone", "runs", "waits"):
        world.add_pod(uid, parse_request(gpu_memory="4Gi"))
    asyncio.run(runner(world).round(world.now()))
    # As a controller has let them go that did not know better; one has not been let go yet.
    world.pods = {uid: replace(each, never=never) for uid, each in world.pods.items()}
    world.pods["waits"] = replace(world.pods["waits"], waits=True, wrong=never, node="", pinned="")
    unheard = replace(world.now(), gpus={})
    asyncio.run(runner(world).round(unheard))
    assert choices() == {"gone", "runs", "waits"}  # what the node has given is not known
    world.held["n"] = {"runs": world.now().choices["n"].choices["runs"].grants}
    world.tell("n")
    done = asyncio.run(runner(world).round(world.now()))
    assert choices() == {"runs"}
    assert world.pods["waits"].waits
    assert done.wrong.keys() == {"gone", "waits"}
    assert done.wrong["gone"].startswith(f"{never}: its node will always refuse it")
    assert done.wrong["gone"].endswith("; create the pod again")
    again = asyncio.run(runner(world).round(world.now()))
    assert (choices(), set(again.wrong)) == ({"runs"}, {"gone", "waits"})
