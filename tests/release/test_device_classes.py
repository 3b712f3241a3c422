"""The DeviceClasses of the chart: one for each kind of device, and one for each MIG profile of the catalogue."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from release.chart import CHART, KubeObject, render
from release.errors import ReleaseError

from tranche.core.board import catalogue
from tranche.core.profile import ProfileName, parse_profile

FILE = CHART / "mig-profiles.yaml"
INTRO = "# The MIG profiles of all boards that Tranche knows. Each profile has a DeviceClass.\n"
KINDS = {"gpu.tranche.dev", "slice.gpu.tranche.dev", "whole.gpu.tranche.dev", "shared.gpu.tranche.dev"}


def known() -> list[ProfileName]:
    return sorted({profile.name for board in catalogue() for profile in board.profiles})


def classes(**chosen: object) -> dict[str, KubeObject]:
    made = render({"dra": {"enabled": True, "deviceClasses": chosen}})
    return {item["metadata"]["name"]: item["spec"] for item in made if item["kind"] == "DeviceClass"}


def test_the_chart_knows_the_profiles_of_every_board(request: pytest.FixtureRequest) -> None:
    made = INTRO + "".join(f"- {profile}\n" for profile in known())
    if request.config.getoption("--update-goldens"):
        FILE.write_text(made)
    assert FILE.read_text() == made, "run pytest --update-goldens and read what it wrote"
    assert yaml.safe_load(made) == [str(profile) for profile in known()]


@pytest.mark.helm
def test_each_profile_has_a_class_and_the_resource_of_nvidias_device_plugin() -> None:
    made = classes()
    assert made.keys() > KINDS
    resources = {spec["extendedResourceName"] for name, spec in made.items() if name not in KINDS}
    assert resources == {f"nvidia.com/{profile.resource_name}" for profile in known()}
    assert len(made) == len(KINDS) + len(known())  # no two profiles are of one name
    assert made["1g-5gb-me.gpu.tranche.dev"]["extendedResourceName"] == "nvidia.com/mig-1g.5gb.me"
    assert made["1g-24gb-no-me.gpu.tranche.dev"]["extendedResourceName"] == "nvidia.com/mig-1g.24gb-me"
    assert made["whole.gpu.tranche.dev"]["extendedResourceName"] == "nvidia.com/gpu"
    assert not {"gpu.tranche.dev", "slice.gpu.tranche.dev", "shared.gpu.tranche.dev"} & {
        name for name, spec in made.items() if "extendedResourceName" in spec
    }
    for name in KINDS:
        (selector,) = made[name]["selectors"]
        unkept = '!("kept" in device.attributes["gpu.tranche.dev"])'
        assert (unkept in selector["cel"]["expression"]) == (name in ("gpu.tranche.dev", "slice.gpu.tranche.dev"))
    (selector,) = made["1g-5gb-me.gpu.tranche.dev"]["selectors"]
    mine = 'device.driver == "gpu.tranche.dev" && device.attributes["gpu.tranche.dev"]'
    assert selector["cel"]["expression"] == (
        f'{mine}.type == "slice" && device.attributes["gpu.tranche.dev"].profile == "1g.5gb+me"'
    )


@pytest.mark.helm
def test_what_is_added_and_left_out() -> None:
    made = classes(wholeGpuResource="", addProfiles=["1g.3gb+me", "1g.5gb"], omitProfiles=["7g.40gb"])
    assert "extendedResourceName" not in made["whole.gpu.tranche.dev"]
    assert made["1g-3gb-me.gpu.tranche.dev"]["extendedResourceName"] == "nvidia.com/mig-1g.3gb.me"
    assert len(made) == len(KINDS) + len(known())
    assert "7g-40gb.gpu.tranche.dev" not in made
    without = classes(sliceResources=False)
    assert {name for name, spec in without.items() if "extendedResourceName" in spec} == {"whole.gpu.tranche.dev"}
    assert classes(create=False) == {}


@pytest.mark.helm
@pytest.mark.parametrize(
    "chosen", [{"wholeGpuResource": "nvidia.com/gpus"}, {"addProfiles": ["1c.3g.20gb"]}, {"omitProfiles": ["1g"]}]
)
def test_what_is_no_profile_and_no_resource_is_refused(chosen: dict[str, Any]) -> None:
    for name in chosen.get("addProfiles", ()):
        assert not parse_profile(name).spans_gpu_instance
    with pytest.raises(ReleaseError, match=f"deviceClasses/{next(iter(chosen))}"):
        classes(**chosen)


@pytest.mark.helm
@pytest.mark.parametrize(
    ("values", "kubernetes", "words"),
    [
        ({"dra": {"enabled": True, "tier": "claims"}}, "1.33.0", r"dra\.tier=claims needs 1\.34 or newer"),
        ({"dra": {"enabled": True}}, "1.35.0", r"set controller\.enabled=true"),
    ],
)
def test_a_cluster_that_cannot_give_shares_so_is_refused(values: dict[str, Any], kubernetes: str, words: str) -> None:
    with pytest.raises(ReleaseError, match=words):
        render({**values, "admissionPolicy": {"enabled": False}}, kubernetes=kubernetes)


@pytest.mark.helm
@pytest.mark.parametrize(
    ("backend", "kubernetes", "by_claims"),
    [
        ("auto", "1.36.0", True),
        ("auto", "1.35.0", False),
        ("auto", "1.30.0", False),
        ("claims", "1.35.0", True),
        ("gates", "1.36.0", False),
    ],
)
def test_device_classes_go_with_claims_and_the_rights_to_choose_with_gates(
    backend: str, kubernetes: str, by_claims: bool
) -> None:
    values = {"dra": {"enabled": True, "tier": backend}, "controller": {"enabled": True}}
    objects = render(values, kubernetes=kubernetes)
    assert any(item["kind"] == "DeviceClass" for item in objects) is by_claims
    assert any(item["metadata"]["name"].endswith("controller-gates") for item in objects) is not by_claims
    assert not any(item["kind"] == "DeviceClass" for item in render())
