"""How much GPUs are used, on a cluster's pages: now and over days, as agents have recorded it, and never older than it says."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest

from tests.dashboard.cluster.teams import OUR_SIGHT
from tests.dashboard.cluster.test_cluster_server import held_by
from tests.dashboard.cluster.test_other_nodes import NODES, RIGHTS, answers
from tests.dashboard.reading import parsed, tables, text_of
from tests.kubernetes.devices.test_order import a100s
from tranche.core.allocation import NodeView
from tranche.core.quantity import GIB
from tranche.core.state import NodeState
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode
from tranche.dashboard.cluster.source import ClusterObservation
from tranche.dashboard.cluster.user_view import ViewerPermission
from tranche.documents.gauge_samples import sample_of
from tranche.documents.overview import overview_data
from tranche.kubernetes.telling.told_view import ViewReport
from tranche.kubernetes.telling.use_report import LINE_SECONDS, UseReport, use_to_text

NOW = 1_800_000_000.0
VIEW = a100s(2)
UUID = VIEW.node.gpus[0].uuid
ALL = RIGHTS[0]


def with_memory(view: NodeView, *free: int) -> NodeView:
    gpus = zip(view.node, free, strict=True)
    return replace(view, node=NodeState(tuple(replace(gpu, memory_free=each) for gpu, each in gpus)))


def recorded(days: float) -> UseReport:
    """Of a GPU that is busy by night."""
    use = UseReport(NOW)
    for number in range(round(days * 86_400 / LINE_SECONDS), -1, -1):
        taken = NOW - number * LINE_SECONDS
        reading = {
            "gpuUUID": UUID,
            "memoryUsedBytes": 8 * GIB,
            "busy": 0.9 if taken % 86_400 < 43_200 else 0.1,
            "powerWatts": 200.0,
            "temperatureCelsius": 50,
            "slices": [],
        }
        use = replace(use, readings=(reading,)).with_line(sample_of(taken, [reading]))
    return use


def pages(
    text: str, *paths: str, trouble: str = "", view: NodeView = VIEW, rights: ViewerPermission = ALL
) -> list[str]:
    node = SeenNode("good", overview=overview_data(view, (), ()), seen=NOW, trouble=trouble)
    snapshot = ClusterSnapshot().after([node], NOW)
    seen = ClusterObservation(snapshot, {"good": ViewReport("good", view, use=text)}, NODES)
    found = answers(seen, rights, *paths)
    assert {status for status, _ in found.values()} == {200}
    return [found[path][1] for path in paths]


GPU = f"/gpus/{quote(UUID)}"


def test_charts_reach_back_over_days() -> None:
    day, week = pages(use_to_text(recorded(8)), f"{GPU}?hours=24", f"{GPU}?hours=168")
    for page in (day, week):
        rows = {row[0]: row[1:] for row in tables(parsed(page))["Use since then"]}
        last, least, _, most = rows["Busy"]
        assert (last, least, most) == ("90%", "10%", "90%")
        assert rows["Memory used"][0] == "8 GiB"
        assert rows["Power"][0] == "200 W"
    assert week.count("tr-held tr-box") >= 4


def test_the_last_hour_is_of_five_minutes_each() -> None:
    use = use_to_text(recorded(0.5))
    (hour,) = pages(use, GPU)
    assert {row[0] for row in tables(parsed(hour))["Use since then"]} == {
        "Memory used", "Busy", "Power", "Temperature"
    }  # fmt: skip
    assert "Its use during this time is unknown" not in hour


def test_a_node_s_page_and_its_gpu_s_say_how_much_is_used_now() -> None:
    node, gpu = pages(use_to_text(recorded(0.1)), "/nodes/good", GPU)
    assert "90% busy" in text_of(parsed(node))
    assert "200 W" in text_of(parsed(gpu))


@pytest.mark.parametrize("late", ["recorded long ago", "not heard"])
def test_what_is_not_of_now_is_not_shown_as_of_now(late: str) -> None:
    use = recorded(0.1) if late == "not heard" else replace(recorded(0.1), taken=NOW - 3600)
    trouble = "its agent is silent" if late == "not heard" else ""
    (node,) = pages(use_to_text(use), "/nodes/good", trouble=trouble)
    assert "busy" not in text_of(parsed(node))


@pytest.mark.parametrize("text", ["", "garbage", "H4sIAAAAAAAAA6uuBQBDv6ajAgAAAA=="])
def test_what_nobody_can_read_leaves_the_rest_of_the_page(text: str) -> None:
    node, gpu = pages(text, "/nodes/good", f"{GPU}?hours=168")
    assert "It has no shares" in text_of(parsed(node))
    assert "Its use during this time is unknown" in gpu


def test_the_first_view_says_how_much_memory_of_each_node_is_used() -> None:
    memory = VIEW.node.gpus[0].memory
    (page,) = pages("", "/", view=with_memory(VIEW, memory, memory // 2))
    (row,) = (each for each in parsed(page).iter("tr") if each.get("id") == "node-good")
    cells = {cell.get("data-label"): "".join(cell.itertext()) for cell in row.iter("td")}
    assert cells["Used"] == "25%"
    (unknown,) = pages("", "/", trouble="its agent is silent")
    (row,) = (each for each in parsed(unknown).iter("tr") if each.get("id") == "node-good")
    assert {cell.get("data-label"): "".join(cell.itertext()) for cell in row.iter("td")}["Used"] == "unknown"


def test_who_may_not_list_nodes_is_not_told_what_went_on_before_he_came() -> None:
    holds = held_by(VIEW, ("blue", 0))
    rights = ViewerPermission(OUR_SIGHT)
    node, gpu = pages(use_to_text(recorded(1)), "/nodes/good", f"{GPU}?hours=24", view=holds, rights=rights)
    assert "busy" not in text_of(parsed(node))
    assert "Use since then" not in tables(parsed(gpu))
    again = pages(use_to_text(recorded(1)), f"{GPU}?hours=24", view=holds, rights=replace(rights, all_nodes=True))
    assert "Use since then" in tables(parsed(again[0]))


def test_an_open_page_asks_again_for_what_nobody_says_has_changed() -> None:
    node, gpu, fleet = pages("", "/nodes/good", GPU, "/")
    assert [parsed(each).find("body").get("data-every") for each in (node, gpu, fleet)] == ["60", "60", None]  # type: ignore[union-attr]


@pytest.mark.parametrize(("start", "shown"), [(0, True), (1, False)])
def test_the_use_of_a_slice_that_is_gone_is_not_that_of_its_successor(start: int, shown: bool) -> None:
    view = held_by(VIEW, ("blue", 0))
    (there,) = overview_data(view, (), ())["gpus"][0]["slices"]
    slices = [
        {
            "gpuInstanceId": there["gpuInstanceId"],
            "memoryUsedBytes": 3 * GIB,
            "busy": None,
            "placement": {**there["placement"], "start": start},
        }
    ]
    reading = {**recorded(0.01).readings[0], "slices": slices}
    (page,) = pages(use_to_text(UseReport(NOW, (reading,))), GPU, view=view)
    assert ("3 GiB" in text_of(parsed(page))) == shown
