"""By what a machine can share devices follows from its driver, its programs and its user; what is not known is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.sharing import Sharing
from tranche.hardware.sharing_means import MachineFacts, read_machine_facts, sharing_means

MACHINE = MachineFacts("580.95.05", (13, 0), (), "", privileged=True)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (MACHINE, ""),
        (MACHINE._replace(driver="470.82.01"), "driver 470.82.01 is older than 495"),
        (MACHINE._replace(driver="495.29"), ""),
        (MACHINE._replace(driver=""), "the driver does not report its version"),
        (MACHINE._replace(missing=("nvidia-cuda-mps-server",)), "nvidia-cuda-mps-server is not installed"),
        (MACHINE._replace(privileged=False), "only root can set a GPU's compute mode"),
        (MACHINE._replace(capabilities="compute,utility"), ""),
        (MACHINE._replace(capabilities="all"), ""),
        (
            MACHINE._replace(capabilities="utility", missing=("nvidia-cuda-mps-control",)),
            "NVIDIA_DRIVER_CAPABILITIES=utility does not give this container CUDA; set the chart's shareByMps=true",
        ),
    ],
)
def test_mps_needs_a_driver_with_limits_its_programs_and_root(facts: MachineFacts, reason: str) -> None:
    means = sharing_means(facts)
    assert means.why_not(Sharing.MPS) == reason
    assert bool(means.mps_clients) is not bool(reason)


def test_an_older_driver_is_named_where_memory_limits_are_refused() -> None:
    assert sharing_means(MACHINE).why_not(Sharing.MEMORY_LIMITS) == "driver 580.95.05 is older than 615"


def test_memory_limits_need_their_driver_control_groups_and_root() -> None:
    new = MACHINE._replace(driver="615.71.09")
    assert sharing_means(new).why_not(Sharing.MEMORY_LIMITS) == ""
    assert sharing_means(new._replace(groups="none are mounted")).why_not(Sharing.MEMORY_LIMITS) == "none are mounted"
    assert "root" in sharing_means(new._replace(privileged=False)).why_not(Sharing.MEMORY_LIMITS)


@pytest.mark.parametrize(("cuda", "clients"), [((12, 4), 48), ((13, 0), 48), ((13, 1), 60), ((14, 0), 60), (None, 48)])
def test_the_number_of_clients_follows_cuda(cuda: tuple[int, int] | None, clients: int) -> None:
    assert sharing_means(MACHINE._replace(cuda=cuda)).mps_clients == clients


@given(st.builds(MachineFacts, st.text(), st.none(), st.just(()), st.text(max_size=3), st.booleans()))
def test_each_mechanism_is_offered_or_refused_in_words_and_turns_always_work(facts: MachineFacts) -> None:
    means = sharing_means(facts)
    assert means.offered | means.refused.keys() == set(Sharing)
    assert not means.offered & means.refused.keys()
    assert all(means.refused.values())
    assert isinstance(means.offered, frozenset), "recordings know frozen sets only"
    assert Sharing.TIME_SLICING in means.offered


def test_what_this_container_was_given_of_the_driver_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_DRIVER_CAPABILITIES", "utility")
    assert read_machine_facts("", None, "").capabilities == "utility"
    monkeypatch.delenv("NVIDIA_DRIVER_CAPABILITIES")
    assert read_machine_facts("", None, "").capabilities == ""


def test_programs_are_looked_for_in_the_folders_that_are_named(tmp_path: Path) -> None:
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        assert name in read_machine_facts("", None, str(tmp_path)).missing
        (tmp_path / name).touch(0o755)
        assert name not in read_machine_facts("", None, f"/nowhere{os.pathsep}{tmp_path}").missing
