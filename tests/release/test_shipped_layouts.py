"""The ConfigMap in which the chart shows the layouts that every kind of GPU brings."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from release.chart import CHART, render

from tests.machines import machine_in
from tranche.core.board import catalogue
from tranche.core.layout_format import parse_layouts

FILE = CHART / "default-mig-parted-config.yaml"
INTRO = """\
# The layouts that Tranche generates for each GPU model. Nodes need no ConfigMap for these layouts. Edits here have no effect.
"""
NAME = "default-mig-parted-config"


def test_it_has_what_every_board_of_the_catalogue_generates(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    boards = [board.key for board in catalogue() if board.profiles]
    with machine_in(tmp_path, *boards) as machine:
        generated = INTRO + machine.tranche("layout", "generate").stdout
    if request.config.getoption("--update-goldens"):
        FILE.write_text(generated)
    assert FILE.read_text() == generated, "run pytest --update-goldens and read what it wrote"


@pytest.mark.helm
def test_it_is_shown_unless_it_is_switched_off_or_made_by_oneself() -> None:
    def shown(**values: object) -> list[str]:
        made = [item for item in render(values) if item["kind"] == "ConfigMap" and item["metadata"]["name"] == NAME]
        return [item["data"]["config.yaml"] for item in made]

    (text,) = shown()
    names = parse_layouts(yaml.safe_load(text)).names
    assert {"all-disabled", "all-enabled", "all-balanced", "all-1g.5gb", "all-1g.10gb"} <= set(names)
    assert shown(migManager={"shippedLayouts": {"enabled": False}}) == []
    assert shown(migManager={"enabled": False}) == []
    mine = {"create": True, "name": NAME, "data": {"config.yaml": "version: v1"}}
    assert shown(migManager={"config": mine}) == ["version: v1"]
