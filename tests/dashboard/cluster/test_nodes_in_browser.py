"""The page of nodes in a real browser: rows that change, who is looked for while typing, a server that comes back."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.dashboard.browsing import NARROW, WIDE, Viewer, keep_pictures, listen

pytestmark = pytest.mark.browser


@contextmanager
def serving(nodes: int, changes: float, port: int = 0, kind: str = "small") -> Iterator[int]:
    """A server of a simulated cluster; its port."""
    command = [sys.executable, "-m", "bench.dashboard_server", str(nodes), str(changes), str(port), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@contextmanager
def viewing(browser: Any, port: int, *, scheme: str = "light", size: tuple[int, int] = WIDE) -> Iterator[Viewer]:
    context = browser.new_context(color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
    context.set_default_timeout(60_000)
    try:
        viewer = Viewer(context.new_page(), f"http://127.0.0.1:{port}")
        listen(viewer, viewer.page)
        viewer.page.on("pageerror", lambda error: viewer.complaints.append(str(error)))
        viewer.open("/")
        yield viewer
    finally:
        context.close()


def ids(viewer: Viewer) -> list[str]:
    found: list[str] = viewer.page.eval_on_selector_all("#rows > tr", "rows => rows.map(row => row.id)")
    return found


def test_it_keeps_nobody_out_in_any_look(browser: Any) -> None:
    with serving(40, 0) as port:
        for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", NARROW), ("dark", NARROW)):
            with viewing(browser, port, scheme=scheme, size=size) as viewer:
                assert viewer.violations() == [], (scheme, size)
                assert not viewer.overflows, (scheme, size)
                assert viewer.complaints == []


def test_rows_that_change_are_put_in_and_the_rest_of_the_page_stays(browser: Any) -> None:
    with serving(40, 30) as port, viewing(browser, port) as viewer:
        page = viewer.page
        before = page.evaluate("() => Object.fromEntries([...rows.rows].map(row => [row.id, row.dataset.changed]))")
        page.evaluate(
            "() => { window.first = document.getElementById('view'); window.key = document.querySelector('.key'); }"
        )
        page.locator("#rows a").nth(3).focus()
        focused = page.evaluate("() => document.activeElement.textContent")
        newer = "before => [...rows.rows].every(row => Number(row.dataset.changed) > Number(before[row.id]))"
        page.wait_for_function(newer, arg=before)
        assert page.evaluate("() => document.activeElement.textContent") == focused
        assert page.evaluate("() => window.first.isConnected && window.key.isConnected"), (
            "the page was not fetched anew"
        )
        assert ids(viewer) == sorted(before)
        assert viewer.complaints == []


def test_who_is_looked_for_is_found_while_typing_and_is_kept_true(browser: Any) -> None:
    with serving(40, 30) as port, viewing(browser, port) as viewer:
        page = viewer.page
        page.locator("#q").focus()
        page.keyboard.type("node-001")
        page.wait_for_function("() => rows.rows.length === 10")
        assert page.url.endswith("?q=node-001")
        assert viewer.focused == "q"
        newest = page.evaluate("() => Math.max(...[...rows.rows].map(row => row.dataset.changed))")
        page.wait_for_function("was => [...rows.rows].some(row => row.dataset.changed > was)", arg=newest)
        assert ids(viewer) == [f"node-node-001{n}" for n in range(10)]
        page.locator("#summary", has_text="10 of 40 nodes match.").wait_for()
        page.reload()
        viewer.wait_for_live()
        assert len(ids(viewer)) == 10
        assert viewer.complaints == []


def test_a_server_that_comes_back_with_another_cluster_is_seen_as_a_whole(browser: Any) -> None:
    with contextlib.ExitStack() as first:
        port = first.enter_context(serving(12, 0))
        with viewing(browser, port) as viewer:
            assert len(ids(viewer)) == 12
            first.close()
            viewer.says("the dashboard server does not answer")
            with serving(15, 0, port):
                viewer.wait_for_live()
                viewer.page.wait_for_function("() => rows.rows.length === 15")


@pytest.mark.long
def test_the_guides_pictures(browser: Any, pytestconfig: pytest.Config) -> None:
    """Nobody compares pixels; new pictures are taken with the goldens."""
    taken = {}
    with serving(60, 0, kind="mixed") as port, viewing(browser, port, size=(1000, 700)) as viewer:
        taken["pictures/cluster-nodes.png"] = viewer.page.screenshot()
    keep_pictures(taken, pytestconfig)
