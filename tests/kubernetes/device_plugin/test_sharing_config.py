"""The v1 file's `sharing.timeSlicing`: what NVIDIA documents is taken as it is, and what cannot be is refused by name."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.device_plugin.nodes import ALL_1G, BALANCED, cut, node, t4, whole
from tranche.core.allocation import FractionalShare
from tranche.core.errors import PluginConfigInvalid
from tranche.core.request import Isolation
from tranche.core.sharing import NO_SHARING, MachineSharing, Sharing
from tranche.core.state import NodeState
from tranche.kubernetes.device_plugin.config import PluginConfig, read_config
from tranche.kubernetes.device_plugin.sharing_config import MOST_REPLICAS, read_sharing
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy, SharedResource, replicated
from tranche.kubernetes.node.resources import PluginDevice, advertise

TEN = "{name: nvidia.com/gpu, replicas: 10}"


def config_of(text: str) -> PluginConfig:
    return read_config(yaml.safe_load(text))


def counts(text: str, state: NodeState) -> dict[str, int]:
    """What a node advertises under that configuration file."""
    config = config_of(text)
    advertised = replicated(advertise(state, config.mig_strategy), config.sharing, WITH_MPS)
    return {resource.name: len(resource.devices) for resource in advertised.resources}


WITH_MPS = MachineSharing(frozenset(Sharing), mps_clients=48)
TESLAS = node(t4(0), t4(1))
BALANCED_PAIR = node(*(cut(index, *BALANCED) for index in range(2)))

DOCUMENTED = [
    (f"{{version: v1, sharing: {{timeSlicing: {{resources: [{TEN}]}}}}}}", TESLAS, {"nvidia.com/gpu": 20}),
    (
        f"sharing: {{timeSlicing: {{renameByDefault: false, failRequestsGreaterThanOne: false, resources: [{TEN}]}}}}",
        TESLAS,
        {"nvidia.com/gpu": 20},
    ),
    (
        f"sharing: {{timeSlicing: {{renameByDefault: true, resources: [{TEN}]}}}}",
        TESLAS,
        {"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 20},
    ),
    (
        (
            "{flags: {migStrategy: mixed}, sharing: {timeSlicing: {resources: ["
            "{name: nvidia.com/gpu, replicas: 8}, {name: nvidia.com/mig-1g.5gb, replicas: 2},"
            "{name: nvidia.com/mig-2g.10gb, replicas: 2}, {name: nvidia.com/mig-3g.20gb, replicas: 3},"
            "{name: nvidia.com/mig-7g.40gb, replicas: 7}]}}}"
        ),
        BALANCED_PAIR,
        {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": 8, "nvidia.com/mig-2g.10gb": 4, "nvidia.com/mig-3g.20gb": 6},
    ),
    (
        "{flags: {migStrategy: single}, sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}}",
        node(*(cut(index, *ALL_1G) for index in range(8))),
        {"nvidia.com/gpu": 224},
    ),
    (
        (
            "{flags: {migStrategy: mixed}, sharing: {timeSlicing: {renameByDefault: true, resources: ["
            "{name: nvidia.com/mig-3g.20gb, replicas: 4}]}}}"
        ),
        node(cut(0, "3g.20gb@0", "3g.20gb@4"), whole(1)),
        {"nvidia.com/gpu": 1, "nvidia.com/mig-3g.20gb": 0, "nvidia.com/mig-3g.20gb.shared": 8},
    ),
    (
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4, devices: [0, '2']}]}}",
        node(*(whole(index) for index in range(4))),
        {"nvidia.com/gpu": 10},
    ),
    (
        (
            "sharing: {timeSlicing: {resources: ["
            "{name: nvidia.com/gpu, replicas: 4, rename: gpu.quarter, devices: [0]},"
            "{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/gpu.half, devices: [1, 2]}]}}"
        ),
        node(*(whole(index) for index in range(4))),
        {"nvidia.com/gpu": 1, "nvidia.com/gpu.quarter": 4, "nvidia.com/gpu.half": 4},
    ),
    (
        "sharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 10}]}}",
        TESLAS,
        {"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 20},
    ),
    (
        "{flags: {migStrategy: mixed}, sharing: {mps: {resources: [{name: nvidia.com/mig-3g.20gb, replicas: 4}]}}}",
        BALANCED_PAIR,
        {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": 4, "nvidia.com/mig-2g.10gb": 2, "nvidia.com/mig-3g.20gb": 8},
    ),
    (
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3, devices: 1}]}}",
        TESLAS,
        {"nvidia.com/gpu": 4},
    ),
]


@pytest.mark.parametrize(("text", "state", "expected"), DOCUMENTED)
def test_resources_by_configuration(text: str, state: NodeState, expected: dict[str, int]) -> None:
    assert counts(text, state) == expected


def test_what_is_read() -> None:
    text = f"sharing: {{timeSlicing: {{failRequestsGreaterThanOne: true, resources: [{TEN}]}}}}"
    assert config_of(text).sharing == ReplicaPolicy(
        (SharedResource("nvidia.com/gpu", 10, "nvidia.com/gpu"),), one_per_request=True
    )
    assert config_of("version: v1").sharing == NOT_SHARED
    for said, one in (("", True), ("failRequestsGreaterThanOne: false, ", False)):
        rules = config_of(f"sharing: {{mps: {{{said}resources: [{TEN}]}}}}").sharing
        shared_by_mps = SharedResource("nvidia.com/gpu", 10, "nvidia.com/gpu", sharing=Sharing.MPS)
        assert rules == ReplicaPolicy((shared_by_mps,), one_per_request=one), "one alone, as with NVIDIA"
    assert config_of("sharing: {timeSlicing: null}").sharing == NOT_SHARED


def shared(rule: str) -> str:
    return f"sharing: {{timeSlicing: {{resources: [{rule}]}}}}"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (shared("{name: nvidia.com/gpu, replicas: 1}"), "number of replicas must be >= 2, not 1"),
        (shared("{name: nvidia.com/gpu, replicas: -3}"), "number of replicas must be >= 2"),
        (shared("{name: nvidia.com/gpu}"), "resources[0].replicas must be a number"),
        (shared("{name: nvidia.com/gpu, replicas: ten}"), "replicas must be a number"),
        (shared("{name: nvidia.com/gpu, replicas: true}"), "replicas must be a number"),
        (shared(f"{{name: nvidia.com/gpu, replicas: {MOST_REPLICAS + 1}}}"), "is more than the 1000"),
        (shared("{replicas: 10}"), "name must be the name of a resource"),
        (shared("{name: nvidia.com/mig-9g.99gb, replicas: 2}"), "no known GPU offers nvidia.com/mig-9g.99gb"),
        (shared("{name: nvidia.com/mig-1c.3g.20gb, replicas: 2}"), "no known GPU offers"),
        (shared("{name: example.com/gpu, replicas: 2}"), "no known GPU offers example.com/gpu"),
        (shared("{name: nvidia.com/gpu.shared, replicas: 2}"), "no known GPU offers"),
        (shared("{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/other}"), "must start with"),
        (shared("{name: nvidia.com/mig-1g.10gb, replicas: 2, rename: mig-1g.10gb.me}"), "must start with"),
        (shared(f"{{name: nvidia.com/gpu, replicas: 2, rename: gpu.{'x' * 60}}}"), "longer than 63 characters"),
        (shared("{name: nvidia.com/gpu, replicas: 2, devices: 0}"), "the number of devices must be at least 1"),
        (shared("{name: nvidia.com/gpu, replicas: 2, devices: []}"), "must be all, a number, or a list"),
        (shared("{name: nvidia.com/gpu, replicas: 2, devices: [first]}"), "'first' is not a device"),
        (
            shared("{name: nvidia.com/gpu, replicas: 2, colour: red}"),
            "unknown field: sharing.timeSlicing.resources[0].",
        ),
        (shared(f"{TEN}, {TEN}"), "two resources share the same devices of nvidia.com/gpu"),
        ("sharing: {timeSlicing: {}}", "no resources specified"),
        ("sharing: {timeSlicing: {resources: []}}", "no resources specified"),
        ("sharing: {timeSlicing: {resources: [3]}}", "resources[0] must be a mapping"),
        ("sharing: {timeSlicing: 3}", "sharing.timeSlicing must be a mapping"),
        (f"sharing: {{timeSlicing: {{renameByDefault: 'yes', resources: [{TEN}]}}}}", "must be true or false"),
        (
            f"sharing: {{timeSlicing: {{rename: true, resources: [{TEN}]}}}}",
            "unknown field: sharing.timeSlicing.rename",
        ),
        (
            f"sharing: {{timeSlicing: {{resources: [{TEN}]}}, mps: {{resources: [{TEN}]}}}}",
            "a node can use timeSlicing or mps",
        ),
        ("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 61}]}}", "61 is more than the 60"),
        ("sharing: {mps: {}}", "sharing.mps: no resources specified"),
        ("sharing: {mps: {share: true}}", "unknown field: sharing.mps.share"),
        ("sharing: {turns: {}}", "unknown field: sharing.turns"),
        ("flags: {mpsRoot: /run/nvidia/mps}", "flags.mpsRoot is not supported"),
        ("flags: {plugin: {sharedDevicesAllocationPolicy: random}}", "is not one of distributed, spread, packed"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(file: str, words: str) -> None:
    with pytest.raises(PluginConfigInvalid) as refused:
        config_of(file)
    assert words in refused.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["nvidia.com/gpu", "all", "GPU-0", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["resources", "name", "replicas", "rename", "devices"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(JSON)
def test_whatever_the_block_says_the_answer_is_rules_or_a_reason(block: Any) -> None:
    with contextlib.suppress(PluginConfigInvalid):
        rules = read_sharing({"timeSlicing": block})
        assert all(2 <= rule.replicas <= MOST_REPLICAS for rule in rules.resources)


def test_virtual_gpus_are_offered_beside_what_they_are_of() -> None:
    def offered(state: NodeState, *, means: MachineSharing = WITH_MPS, count: str = "10") -> dict[str, int]:
        config = read_config(flags={"--mig-strategy": "mixed", "--vgpu": count})
        advertised = replicated(advertise(state, config.mig_strategy), config.sharing, means)
        assert bool(advertised.unshared) is (means is not WITH_MPS or count == "60")
        return {resource.name: len(resource.devices) for resource in advertised.resources}

    assert offered(TESLAS) == {"nvidia.com/gpu": 2, "k8s.amazonaws.com/vgpu": 20}
    assert offered(TESLAS, count="20") == {"nvidia.com/gpu": 2, "k8s.amazonaws.com/vgpu": 40}
    slices = {"nvidia.com/gpu": 0, "nvidia.com/mig-3g.20gb": 2, "k8s.amazonaws.com/vgpu": 20}
    assert offered(node(cut(0, "3g.20gb@0", "3g.20gb@4"))) == slices
    assert offered(TESLAS, count="60") == {"nvidia.com/gpu": 2, "k8s.amazonaws.com/vgpu": 0}, "48 clients"
    assert offered(TESLAS, means=NO_SHARING) == {"nvidia.com/gpu": 2, "k8s.amazonaws.com/vgpu": 0}
    assert read_config(flags={"--vgpu": "0"}).sharing == NOT_SHARED


@pytest.mark.parametrize("count", ["1", "-1", "61", "ten", ""])
def test_a_number_of_virtual_gpus_that_cannot_be_is_refused(count: str) -> None:
    with pytest.raises(PluginConfigInvalid, match=f"--vgpu must be between 2 and 60 .*, not '{count}'"):
        read_config(flags={"--vgpu": count})


def test_virtual_gpus_have_a_ceiling_and_memory_without_limit_only_when_somebody_says_so() -> None:
    def first(**flags: str) -> PluginDevice:
        named = {f"--vgpu-{name.replace('_', '-')}": each for name, each in flags.items()}
        config = read_config(flags={"--vgpu": "10", **named})
        advertised = replicated(advertise(TESLAS, config.mig_strategy), config.sharing, WITH_MPS)
        (virtual,) = (each for each in advertised.resources if each.name == "k8s.amazonaws.com/vgpu")
        return virtual.devices[0]

    def part(device: PluginDevice) -> FractionalShare:
        grant = device.grant
        assert isinstance(grant, FractionalShare)
        return grant

    usual, free = first(), first(memory_limit="false")
    assert (usual.threads, part(usual).limit, part(usual).kept) == (None, None, True)
    assert first(thread_percentage="10") == replace(usual, threads=10)
    assert part(free) == part(usual)._replace(limit=TESLAS.gpus[0].usable_memory)
    assert (part(free).walls.isolation, part(free).kept) == (Isolation.NONE, False)
    by_variable = read_config(flags={"--vgpu": "10"}, environment={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20"})
    assert by_variable.sharing.virtual_threads == 20


@pytest.mark.parametrize("percent", ["0", "101", "-1", "ten", ""])
def test_a_percentage_of_threads_that_cannot_be_is_refused(percent: str) -> None:
    with pytest.raises(
        PluginConfigInvalid, match=f"--vgpu-thread-percentage must be a percentage between 1 and 100, not '{percent}'"
    ):
        read_config(flags={"--vgpu": "10", "--vgpu-thread-percentage": percent})


@pytest.mark.parametrize("flag", [{"--vgpu-thread-percentage": "10"}, {"--vgpu-memory-limit": "false"}])
def test_what_is_said_of_virtual_gpus_is_refused_without_any(flag: dict[str, str]) -> None:
    with pytest.raises(PluginConfigInvalid, match="need virtual GPUs, but none are configured"):
        read_config(flags=flag)


def test_virtual_gpus_and_a_sharing_block_exclude_one_another() -> None:
    with pytest.raises(PluginConfigInvalid, match="vgpu and sharing both define"):
        read_config(yaml.safe_load(shared(TEN)), flags={"--vgpu": "10"})


def test_a_cut_gpu_as_a_whole_is_not_shared_by_mps() -> None:
    config = config_of("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
    advertised = replicated(advertise(node(cut(0), whole(1)), config.mig_strategy), config.sharing, WITH_MPS)
    assert len(advertised.devices) == 4
    assert advertised.unshared == (
        "nvidia.com/gpu is not offered on GPU 0: it is in MIG mode, where MPS shares only slices",
    )


@pytest.mark.parametrize("page", ["time-slicing", "virtual-gpus"])
def test_the_files_of_the_guides_are_accepted(page: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "guides" / f"{page}.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    in_values = [file for block in blocks for file in block.get("config", {}).get("map", {}).values()]
    files = [*map(yaml.safe_load, in_values), *(block for block in blocks if "version" in block)]
    assert files
    assert any(read_config(file).sharing.resources for file in files)
    counts = [block["virtualGPUs"] for block in blocks if "virtualGPUs" in block]
    assert all(read_config(flags={"--vgpu": str(count)}).sharing.virtual == count for count in counts)
    assert page == "time-slicing" or counts
