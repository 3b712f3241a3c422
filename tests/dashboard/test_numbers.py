"""The numbers of the pages are those of the JSON documents at the same event, in any state that a machine gets into."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from release.browser import browser_running

from tests.dashboard.browsing import viewer_of
from tests.dashboard.random_machine import RandomMachine
from tests.dashboard.reading import figures, parsed, tables
from tests.dashboard.served import Dashboards, ServedDashboard
from tests.machines import TestMachine, machine_in, short_folder
from tests.support.length import rounds
from tranche.core.board import board_by_key
from tranche.core.quantity import GIB, MIB, format_memory
from tranche.dashboard.events_page import MOST
from tranche.documents.history import seconds_of

BOARDS = ("A100-40GB", "A100-40GB", "H100-80GB-SXM", "T4")
STATES = rounds(200, 15, "TRANCHE_DASHBOARD_STATES")
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
    overview, events, asked = dashboard.json("/api/overview"), dashboard.json("/api/events")["events"], time.time()
    return {**overview, "events": events, "asked": asked, "waste": dashboard.json("/api/waste"), "told": time.time()}


def at_rest(state: State) -> State:
    """The state without what grows with the time."""
    waste = {name: each for name, each in state["waste"].items() if name != "gpus"}
    waste["owners"] = sorted(({**each, "heldByteSeconds": 0} for each in waste["owners"]), key=str)
    return {**state, "waste": waste, "asked": 0, "told": 0}


def pages_of(dashboard: ServedDashboard, state: State, number: int) -> dict[str, str]:
    """The pages of the state, of GPUs and shares one each."""
    paths = ["/", "/queue", "/events", "/waste"]
    if gpus := state["gpus"]:
        paths.append(f"/gpus/{gpus[number % len(gpus)]['uuid']}")
    if shares := state["allocations"]:
        paths.append(f"/shares/{shares[number % len(shares)]['id']}")
    return {path: dashboard.ask(path).text for path in paths}


def at_one_event(dashboard: ServedDashboard, number: int) -> tuple[State, dict[str, str], State]:
    """The documents, pages between two looks at which the documents were the same but for the time, and those of the second.

    A look may be the first after a kill, and clear what is left of it.
    """
    state = state_of(dashboard)
    for _ in range(_MOST_LOOKS):
        pages, after = pages_of(dashboard, state, number), state_of(dashboard)
        if at_rest(after) == at_rest(state):
            return state, pages, after
        state = after
    raise AssertionError("the machine does not come to rest")


def compare(state: State, pages: dict[str, str], after: State) -> None:
    """What the pages print is what the documents say, before and `after` them."""
    for path, text in pages.items():
        page = parsed(text)
        match path.strip("/").split("/"):
            case [""]:
                _compare_fleet(state, figures(page), tables(page)["The same as a table"])
            case ["queue"]:
                rows = tables(page).get("Waiting requests, oldest first", [])
                for row, each in zip(rows, state["waiters"], strict=True):
                    assert row[0] == str(each["position"])
                    assert row[1].endswith(each["id"])
                    assert row[4].startswith(each["why"])
            case ["events"]:
                rows = tables(page).get("Events, newest first", [])
                newest = [[str(each["position"]), each["type"]] for each in reversed(state["events"])]
                assert [[row[0], row[2]] for row in rows] == newest[:MOST]
            case ["waste"]:
                _compare_waste(state, figures(page), tables(page), after["waste"])
            case ["gpus", uuid]:
                (gpu,) = [each for each in state["gpus"] if each["uuid"] == uuid]
                _compare_gpu(gpu, figures(page), tables(page).get("Slices and holders", []))
                of_it = [id for id, grants in _grants(state).items() if any(g["gpuUUID"] == uuid for g in grants)]
                rows = tables(page).get("Past holders, newest first", [])
                assert {row[0] for row in rows if row[4] == "still held"} == set(of_it)
            case ["shares", id]:
                (share,) = [each for each in state["allocations"] if each["id"] == id]
                assert figures(page)["state"] == share["phase"]
                assert len(tables(page)["What was granted"]) == len(share["grants"])
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
        assert row[6] == format_memory(each["memoryBytes"])
        assert [id for id in each["allocationIds"] if id not in row[4]] == []


def _compare_gpu(gpu: State, numbers: dict[str, str], rows: list[list[str]]) -> None:
    assert numbers["memory"] == format_memory(gpu["memoryBytes"])
    assert numbers["memory free"] == format_memory(gpu["memoryFreeBytes"])
    assert [row[:3] for row in rows] == [
        [f"{each['placement']['start']}:{each['placement']['size']}", each["profile"], each["state"]]
        for each in gpu["slices"]
    ]
    for row, each in zip(rows, gpu["slices"], strict=True):
        assert [id for id in each["allocationIds"] if id not in row[4]] == []


def _grants(state: State) -> dict[str, Any]:
    return {each["id"]: each["grants"] for each in state["allocations"]}


def _compare_waste(state: State, numbers: dict[str, str], shown: dict[str, list[list[str]]], later: State) -> None:
    """The page, the document, and what the overview and the events say by themselves; all that grows lies between two looks."""
    waste = state["waste"]
    unused = [each["memoryBytes"] for each in waste["unused"]]
    spare = [each["memoryBytes"] - each["enough"]["memoryBytes"] for each in waste["tooLarge"]]
    idle = [each["memoryBytes"] for each in waste["idle"]]
    words = ("held and unused", "held and larger than needed", "idle slices")
    assert numbers == {word: format_memory(sum(each)) for word, each in zip(words, (unused, spare, idle), strict=True)}
    assert [row[1] for row in shown.get("Held, but without a running process", [])] == list(map(format_memory, unused))
    assert [row[1] for row in shown.get("Idle slices", [])] == list(map(format_memory, idle))
    devices = [each for gpu in state["gpus"] for each in (gpu, *gpu["slices"])]
    active = {each["id"] for each in state["allocations"] if each["phase"] == "active"}
    held = [
        each for each in devices if active & set(each["allocationIds"]) and each.get("gpuInstanceId", 0) is not None
    ]
    assert sum(unused) == sum(each["memoryBytes"] for each in held if not each["processes"])
    assert sum(idle) == sum(each["memoryBytes"] for each in devices if each.get("state") == "idle")
    assert sum(each["unusedBytes"] for each in waste["owners"]) == sum(unused)
    assert sum(each["spareBytes"] for each in waste["owners"]) == sum(spare)
    _compare_held(state)
    rows = {row[0]: row for row in shown.get("By user and namespace, largest first", [])}
    after = {_whose(each): each for each in later["owners"]}
    assert rows.keys() == after.keys()
    for each in waste["owners"]:
        _, shares, hours, unused_now, spare_now = rows[_whose(each)]
        wanted = (str(each["shares"]), format_memory(each["unusedBytes"]), format_memory(each["spareBytes"]))
        assert (shares, unused_now, spare_now) == wanted
        first, last = (one["heldByteSeconds"] / GIB / 3600 for one in (each, after[_whose(each)]))
        assert first - 0.051 <= float(hours.removesuffix(" GiB·h").replace(",", "")) <= last + 0.051
    use = shown["Fractions of each GPU over time"]
    for row, before, then in zip(use, waste["gpus"], later["gpus"], strict=True):
        for cell, name in zip(row[1:3], ("held", "idle"), strict=True):
            share = float(cell.removesuffix("%")) / 100
            assert min(before[name], then[name]) - 0.0051 <= share <= max(before[name], then[name]) + 0.0051


def _whose(owned: State) -> str:
    return "not known" if owned["owner"] is None else f"{owned['owner']['kind']} {owned['owner']['name']}"


def _compare_held(state: State) -> None:
    """All that was held, by the events of the shares' begin and end alone, and by the boards' own sizes.

    How long GPUs were held, in units of their grids, says of which moment the document is, and so how much memory that was.
    """
    now = {each["id"] for each in state["allocations"]}
    shares = {each["id"]: (seconds_of(each["created"]), each["grants"]) for each in state["allocations"]}
    granted = [each for each in state["events"] if each["type"] == "Granted"]
    shares |= {each["allocationId"]: (seconds_of(each["time"]), each["data"]["grants"]) for each in granted}
    ended = {each["allocationId"]: seconds_of(each["time"]) for each in state["events"] if each["type"] == "Released"}
    gpus, base = {each["uuid"]: each for each in state["gpus"]}, state["asked"]
    moment, fixed, growing = base, [0.0, 0.0], [0, 0]  # of units, and of bytes
    for id, (began, grants) in shares.items():
        for each in grants:
            sizes = _sizes(gpus[each["gpuUUID"]], each)
            end = base if id in now else ended.get(id, began)
            fixed = [total + size * (end - began) for total, size in zip(fixed, sizes, strict=True)]
            growing = [total + size * (id in now) for total, size in zip(growing, sizes, strict=True)]
    waste = state["waste"]
    area = sum(each["held"] * (gpus[each["gpuUUID"]]["memorySlices"] or 1) for each in waste["gpus"])
    area *= waste["hours"] * 3600
    if growing[0]:
        moment += (area - fixed[0]) / growing[0]
        assert base - 1e-3 <= moment <= state["told"] + 1e-3
    else:
        assert area == pytest.approx(fixed[0], abs=1e-3)
    held = sum(each["heldByteSeconds"] for each in waste["owners"])
    assert held == pytest.approx(fixed[1] + growing[1] * (moment - base), rel=1e-6, abs=len(shares) * MIB)


def _sizes(gpu: State, grant: State) -> tuple[int, int]:
    """How many units of the grid and how many bytes were given."""
    if grant["profile"] is None:
        return gpu["memorySlices"] or 1, gpu["memoryBytes"]
    board = board_by_key(BOARDS[gpu["index"]])
    assert board is not None
    (memory,) = [each.memory or 0 for each in board.profiles if str(each.name) == grant["profile"]]
    return grant["placement"]["size"], memory


@pytest.mark.timeout(1200)
def test_the_pages_say_what_the_documents_say_in_random_states() -> None:
    with random_machine(20261122) as (walk, dashboard):
        machine: TestMachine = walk.machine
        story: list[str] = []
        seen: set[str] = set()
        for number in range(STATES):
            story.append(walk.step())
            state, pages, after = at_one_event(dashboard, number)
            try:
                compare(state, pages, after)
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


@pytest.mark.long
@pytest.mark.browser
def test_a_browser_shows_what_the_documents_say_in_random_states() -> None:
    with random_machine(7) as (walk, dashboard):
        for _ in range(4):
            for _ in range(4):
                walk.step()
            state, *_ = at_one_event(dashboard, 0)
            # Nobody is forked beside the threads of a browser.
            with browser_running() as browser, viewer_of(browser, dashboard) as viewer:
                shown = viewer.page.locator("dl.figures").inner_text().split("\n")
                found = dict(zip(shown[::2], shown[1::2], strict=True))
                held = sum(each["state"] == "held" for gpu in state["gpus"] for each in gpu["slices"])
                assert found["slices held"] == str(held)
                assert found["shares"] == str(len(state["allocations"]))
                assert found["waiting"] == str(len(state["waiters"]))
                assert viewer.page.locator(".gpu .bar").count() == len(state["gpus"])
