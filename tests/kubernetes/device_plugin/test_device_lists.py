"""What the strategy auto stands for, by what a node says of itself."""

from __future__ import annotations

import pytest

from tranche.kubernetes.device_plugin.config import (
    PluginConfig,
    read_config,
    why_no_cdi,
    why_not_by_cdi,
    with_strategy,
)


@pytest.mark.parametrize(
    ("runtime", "kubelet"),
    [
        ("containerd://2.3.7", "v1.36.3"),
        ("containerd://2.0.0-rc.1", "v1.31.0-eks-a737599"),
        ("cri-o://1.31.2", "v1.31.0"),
        ("containerd://10.0.0", "v2.0.0"),
    ],
)
def test_versions_that_show_that_a_node_takes_cdi(runtime: str, kubelet: str) -> None:
    assert not why_no_cdi(runtime, kubelet)


@pytest.mark.parametrize(
    ("runtime", "kubelet", "why"),
    [
        ("containerd://1.7.27", "v1.36.3", "containerd 1.7.27"),
        ("containerd://2.3.7", "v1.30.9", "kubelet version is v1.30.9"),
        ("containerd://2.3.7", "", "kubelet version is unknown"),
        ("cri-o://1.24.1", "v1.36.3", "cri-o 1.24.1"),
        ("docker://29.1.0", "v1.36.3", "docker://29.1.0"),
        ("containerd://main", "v1.36.3", "containerd main"),
        ("", "", "container runtime is unknown"),
    ],
)
def test_versions_that_do_not(runtime: str, kubelet: str, why: str) -> None:
    assert why in why_no_cdi(runtime, kubelet)


def test_what_cdi_cannot_do_goes_by_the_variable() -> None:
    assert not why_not_by_cdi(PluginConfig())
    assert "gds-enabled" in why_not_by_cdi(read_config({"flags": {"gdsEnabled": True}}))
    assert "index" in why_not_by_cdi(read_config({"flags": {"plugin": {"deviceIDStrategy": "index"}}}))


def test_the_chosen_strategy_is_one_of_the_others() -> None:
    assert PluginConfig().unchosen
    assert with_strategy(PluginConfig(), "").cdi_only
    assert not with_strategy(PluginConfig(), "why").cdi_enabled
    assert not with_strategy(PluginConfig(), "why").unchosen
