"""The terminal in the README shows what the product prints."""

from __future__ import annotations

import re

from release.recording import RECORDING, draw, record_session, text_of

from tests.support.page_commands import matches


def steady(text: str) -> str:
    return re.sub(r"\(\w+\)(?= [0-9a-f]{8}\b)", "(USER)", text)


def test_the_recording_is_what_the_product_prints() -> None:
    committed, printed = RECORDING.read_text(), record_session()
    assert matches([steady(text_of(committed))], [steady("".join(printed))]), "\n".join(printed)
    assert draw(printed).count("<text") == committed.count("<text")


def test_a_picture_shows_every_character_of_a_long_line_and_loads_nothing() -> None:
    picture = draw(["$ true", "<&>" * 50])
    assert text_of(picture) == "$ true" + "<&>" * 50
    assert picture.count("<text") == 3
    assert re.findall(r"\w+://\S+?(?=\")", picture) == ["http://www.w3.org/2000/svg"]
