"""The numbers of the pages are those of the JSON documents at the same event, in any state that a machine gets into."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.dashboard.browsing import browser_running, viewer_of
from tests.dashboard.random_machine import RandomMachine
from tests.dashboard.reading import figures, parsed, tables
from tests.dashboard.served import Dashboards, ServedDashboard
from tests.machines import TestMachine, machine_in, short_folder
from tranche.core.quantity import format_memory
from tranche.dashboard.events_page import MOST

BOARDS = ("A100-40GB", "A100-40GB", "H100-80GB-SXM", "T4")
STATES = int(os.environ.get("TRANCHE_DASHBOARD_STATES", "200"))
_MOST_LOOKS = 10

State = dict[str, Any]


@contextmanager
def random_machine(seed: int) -> Iterator[tuple[RandomMachine, ServedDashboard]]:
    with short_folder() as folder, machine_in(folder, *BOARDS) as machine:
        dashboards, walk = Dashboards(machine), RandomMachine(machine, random.Random(seed))
        try:
            yield walk, dashboards.start()
        finally:
            walk.end()
            dashboards.end()


def state_of(dashboard: ServedDashboard) -> State:
    """The documents at one event."""
    return {**dashboard.json("/api/overview"), "events": dashboard.json("/api/events")["events"]}


def pages_of(dashboard: ServedDashboard, state: State, number: int) -> dict[str, str]:
    """The pages of the state, of GPUs and shares one each."""
    paths = ["/", "/queue", "/events"]
    if gpus := state["gpus"]:
        paths.append(f"/gpus/{gpus[number % len(gpus)]['uuid']}")
    if shares := state["allocations"]:
        paths.append(f"/shares/{shares[number % len(shares)]['id']}")
    return {path: dashboard.ask(path).text for path in paths}


def at_one_event(dashboard: ServedDashboard, number: int) -> tuple[State, dict[str, str]]:
    """The documents, and pages between two looks at which the documents were the same.

    A look may be the first after a kill, and clear what is left of it.
    """
    state = state_of(dashboard)
    for _ in range(_MOST_LOOKS):
        pages, after = pages_of(dashboard, state, number), state_of(dashboard)
        if after == state:
            return state, pages
        state = after
    raise AssertionError("the machine does not come to rest")


def compare(state: State, pages: dict[str, str]) -> None:
    """What the pages print is what the documents say."""
    for path, text in pages.items():
        page = parsed(text)
        match path.strip("/").split("/"):
            case [""]:
                _compare_fleet(state, figures(page), tables(page)["The same as a table"])
            case ["queue"]:
                rows = tables(page).get("Who waits, first come first", [])
                waiting = [[str(each["position"]), each["id"], each["why"]] for each in state["waiters"]]
                assert [[row[0], row[1], row[5]] for row in rows] == waiting
            case ["events"]:
                rows = tables(page).get("Events, newest first", [])
                newest = [[str(each["position"]), each["type"]] for each in reversed(state["events"])]
                assert [[row[0], row[2]] for row in rows] == newest[:MOST]
            case ["gpus", uuid]:
                (gpu,) = [each for each in state["gpus"] if each["uuid"] == uuid]
                _compare_gpu(gpu, figures(page), tables(page).get("Slices and holders", []))
            case ["shares", id]:
                (share,) = [each for each in state["allocations"] if each["id"] == id]
                assert figures(page)["state"] == share["phase"]
                assert len(tables(page)["What it was given"]) == len(share["grants"])
                events = [str(each["position"]) for each in reversed(state["events"]) if each["allocationId"] == id]
                assert [row[0] for row in tables(page).get("Events, newest first", [])] == events
            case _:
                raise AssertionError(path)


def _compare_fleet(state: State, numbers: dict[str, str], rows: list[list[str]]) -> None:
    slices = [(gpu, each) for gpu in state["gpus"] for each in gpu["slices"]]
    assert numbers == {
        "GPUs": str(len(state["gpus"])),
        "slices": str(len(slices)),
        "slices held": str(sum(each["state"] == "held" for _, each in slices)),
        "slices idle": str(sum(each["state"] == "idle" for _, each in slices)),
        "shares": str(len(state["allocations"])),
        "waiting": str(len(state["waiters"])),
    }
    shown = {(row[0], row[1]): row for row in rows}
    for gpu, each in slices:
        place = f"{each['profile']} at {each['placement']['start']}:{each['placement']['size']}"
        row = shown[f"GPU {gpu['index']}", place]
        assert row[4] == format_memory(each["memoryBytes"])
        assert [id for id in each["allocationIds"] if id not in row[3]] == []


def _compare_gpu(gpu: State, numbers: dict[str, str], rows: list[list[str]]) -> None:
    assert numbers["memory"] == format_memory(gpu["memoryBytes"])
    assert numbers["memory free"] == format_memory(gpu["memoryFreeBytes"])
    assert [row[:3] for row in rows] == [
        [f"{each['placement']['start']}:{each['placement']['size']}", each["profile"], each["state"]]
        for each in gpu["slices"]
    ]
    for row, each in zip(rows, gpu["slices"], strict=True):
        assert [id for id in each["allocationIds"] if id not in row[3]] == []


@pytest.mark.timeout(1200)
def test_the_pages_say_what_the_documents_say_in_random_states() -> None:
    with random_machine(20261122) as (walk, dashboard):
        machine: TestMachine = walk.machine
        story: list[str] = []
        seen: set[str] = set()
        for number in range(STATES):
            story.append(walk.step())
            state, pages = at_one_event(dashboard, number)
            try:
                compare(state, pages)
            except (AssertionError, KeyError) as error:
                raise AssertionError(f"after {len(story)} steps, the last {story[-5:]}") from error
            seen |= {each["type"] for each in state["events"]}
            if number % 20 == 0:
                printed = machine.json("top")
                assert {name: state[name] for name in ("gpus", "allocations", "waiters")} == {
                    name: printed[name] for name in ("gpus", "allocations", "waiters")
                }
                assert state["events"] == machine.json("events", "--last", "10000")["events"]
        # The walk was one through more than a quiet machine; a short one may be through less.
        assert (
            STATES < 100
            or {"Granted", "Released", "Recovered", "ChangeBegun", "CreateInstance", "DestroyInstance"} <= seen
        )


@pytest.mark.browser
def test_a_browser_shows_what_the_documents_say_in_random_states() -> None:
    with random_machine(7) as (walk, dashboard):
        for _ in range(4):
            for _ in range(4):
                walk.step()
            state, _ = at_one_event(dashboard, 0)
            # Nobody is forked beside the threads of a browser.
            with browser_running() as browser, viewer_of(browser, dashboard) as viewer:
                shown = viewer.page.locator("dl.figures").inner_text().split("\n")
                found = dict(zip(shown[::2], shown[1::2], strict=True))
                held = sum(each["state"] == "held" for gpu in state["gpus"] for each in gpu["slices"])
                assert found["slices held"] == str(held)
                assert found["shares"] == str(len(state["allocations"]))
                assert found["waiting"] == str(len(state["waiters"]))
                assert viewer.page.locator(".gpu .bar").count() == len(state["gpus"])
