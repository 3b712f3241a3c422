"""What of `tranche top` a terminal shows, and what the keys do."""

from __future__ import annotations

import click
from hypothesis import given
from hypothesis import strategies as st

from tranche.cli.top import HEAD_LINES, HELP, TopView

KEYS = (
    "j",
    "k",
    "\x1b[A",
    "\x1b[B",
    "\x1b[5~",
    "\x1b[6~",
    "g",
    "G",
    "/",
    "\x1b",
    "\r",
    "\x7f",
    "1",
    "x",
    "\x1b[C",
    "\t",
)
LEGEND = ["legend", ""]


def picture(count: int) -> list[str]:
    return [*LEGEND, *(click.style(f"line {number}", fg="green") for number in range(count))]


def after(keys: str | list[str], lines: list[str], height: int) -> TopView:
    screen = TopView()
    for key in keys:
        screen = screen.pressed(key, lines, height)
    return screen


@given(st.lists(st.sampled_from(KEYS), max_size=20), st.integers(0, 40), st.integers(0, 40), st.integers(1, 30))
def test_the_screen_is_full_and_never_past_the_end(keys: list[str], count: int, later: int, height: int) -> None:
    """Also when the picture has become shorter since."""
    screen = after(keys, picture(count), height)
    shown = screen.shown(picture(later), height)
    assert len(shown) == max(height, HEAD_LINES + 2)
    assert shown[:HEAD_LINES] == LEGEND
    found = [line for line in picture(later)[HEAD_LINES:] if screen.looked_for.casefold() in click.unstyle(line)]
    body = [line for line in shown[HEAD_LINES:-1] if line]
    assert len(body) == min(len(found), len(shown) - HEAD_LINES - 1)
    assert body == found[found.index(body[0]) :][: len(body)] if body else not found


def test_every_line_is_reached_by_one_key_alone() -> None:
    lines = picture(50)
    for key in ("j", "\x1b[B", "\x1b[6~"):
        seen, screen = set[str](), TopView()
        for _ in range(60):
            seen |= set(screen.shown(lines, 10)[HEAD_LINES:-1])
            screen = screen.pressed(key, lines, 10)
        assert seen == set(lines[HEAD_LINES:])


def test_keys_move_to_the_end_and_back() -> None:
    lines = picture(50)
    assert after(["G"], lines, 10).shown(lines, 10)[-2] == lines[-1]
    assert after(["G", "g"], lines, 10) == TopView()
    assert after(["G", "\x1b[A"], lines, 10).first == after(["G"], lines, 10).first - 1


def test_lines_are_found_while_one_types() -> None:
    lines = picture(50)
    typing = after("/Line 1", lines, 30)
    assert typing.shown(lines, 30)[-1] == "/Line 1█"
    assert [click.unstyle(each) for each in typing.shown(lines, 30)[HEAD_LINES:5]] == ["line 1", "line 10", "line 11"]
    done = typing.pressed("\r", lines, 30)
    assert done.shown(lines, 30)[-1] == f"those with 'Line 1'  {HELP}"
    assert after("/q", lines, 30) == TopView(looked_for="q", typing=True)
    assert typing.pressed("\x7f", lines, 30).looked_for == "Line "
    assert done.pressed("\x1b", lines, 30) == TopView()


def test_q_and_a_terminal_that_is_gone_end_it() -> None:
    for key in ("q", "Q", ""):
        assert TopView().pressed(key, picture(3), 10).ended
    assert TopView(typing=True).pressed("", picture(3), 10).ended


def test_the_last_line_says_what_is_out_of_sight() -> None:
    assert TopView().shown(picture(3), 10)[-1] == HELP
    assert TopView(first=5).shown(picture(50), 10)[-1] == f"… 5 more above, 38 more below  {HELP}"
