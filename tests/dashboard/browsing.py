"""A real browser on a real dashboard."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from release.browser import driving_packages

from tests.dashboard.served import ServedDashboard

_DOCS = Path(__file__).parents[2] / "docs"
LARGE, WIDE, NARROW = (1920, 1080), (1000, 800), (360, 800)


def keep_pictures(taken: Mapping[str, bytes], config: pytest.Config) -> None:
    """Pictures of the guides, by their places in docs: they are written with the goldens, else they only have to be there."""
    for name, picture in taken.items():
        if config.getoption("--update-goldens"):
            (_DOCS / name).parent.mkdir(exist_ok=True)
            (_DOCS / name).write_bytes(picture)
        assert (_DOCS / name).read_bytes()[:8] == picture[:8], name


def listen(viewer: Viewer, page: Any) -> None:
    """Keep what the page's console says."""
    page.on("console", lambda message: viewer.complaints.append(message.text))


@dataclass(slots=True)
class Viewer:
    """Somebody who has entered a dashboard: `page` is Playwright's, `complaints` what the browser's console said."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        """Go to a view, and wait until it is live."""
        self.page.goto(f"{self.address}{path}")
        self.wait_for_live()

    def wait_for_live(self) -> None:
        self.page.locator("#live.live").wait_for()

    def says(self, text: str) -> None:
        """Wait until the line about liveness says that."""
        self.page.locator("#live", has_text=text).wait_for()

    def keep_what_is_said(self) -> None:
        """Keep whatever the line about liveness says from now on."""
        self.page.evaluate(
            """() => {
                const line = document.getElementById('live-said');
                window.said = [];
                new MutationObserver(() => window.said.push(line.textContent)).observe(line, {childList: true, subtree: true});
            }"""
        )

    @property
    def said_meanwhile(self) -> list[str]:
        """What it has said since."""
        found: list[str] = self.page.evaluate("() => window.said")
        return found

    @property
    def view(self) -> str:
        """The text of the live part."""
        return str(self.page.locator("#view").inner_text())

    @property
    def focused(self) -> str:
        """The id, or else the text, of what has the focus."""
        script = "() => document.activeElement.id || document.activeElement.textContent"
        return str(self.page.evaluate(script))

    def violations(self) -> list[str]:
        """What axe-core objects to."""
        source = next(driving_packages().glob("axe_playwright_python/axe.min.js")).read_text()
        self.page.evaluate(source)
        found = json.loads(self.page.evaluate("async () => JSON.stringify((await axe.run()).violations)"))
        return [f"{each['id']}: {each['help']}: {[node['html'] for node in each['nodes']][:3]}" for each in found]

    @property
    def overflows(self) -> bool:
        """Whether the page is wider than the screen."""
        return bool(self.page.evaluate("() => document.documentElement.scrollWidth > window.innerWidth"))


@contextmanager
def viewer_of(
    browser: Any, dashboard: ServedDashboard, *, scheme: str = "light", size: tuple[int, int] = WIDE, zone: str = "UTC"
) -> Iterator[Viewer]:
    """A viewer with a browser profile of his own, who enters by the printed address."""
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": size[0], "height": size[1]}, timezone_id=zone, locale="en-GB"
    )
    context.set_default_timeout(60_000)
    try:
        page = context.new_page()
        viewer = Viewer(page, f"http://{dashboard.host}")
        listen(viewer, page)
        page.on("pageerror", lambda error: viewer.complaints.append(str(error)))
        page.on("dialog", lambda dialog: viewer.complaints.append(f"dialog {dialog.message}"))
        page.goto(f"{viewer.address}/enter?token={dashboard.token}")
        page.wait_for_url(f"{viewer.address}/")
        viewer.wait_for_live()
        yield viewer
    finally:
        context.close()


def entered(browser: Any, address: str, token: str, scheme: str = "light", size: tuple[int, int] = WIDE) -> Viewer:
    """Whoever types that token into the form of a cluster's page, and by keyboard alone."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": size[0], "height": size[1]}, locale="en-GB")
    context.set_default_timeout(60_000)
    viewer = Viewer(context.new_page(), address)
    viewer.page.goto(viewer.address)
    assert viewer.violations() == []
    viewer.page.keyboard.press("Tab")
    viewer.page.keyboard.type(token)
    viewer.page.keyboard.press("Enter")
    viewer.wait_for_live()
    # That nobody was let in before he entered is in the console, and no more.
    listen(viewer, viewer.page)
    viewer.page.on("pageerror", lambda error: viewer.complaints.append(str(error)))
    return viewer
