"""The policy as a file: what is understood, what is refused, what would change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import uncuttable_gpu
from tranche.core.errors import GpuNotFound, PolicyInvalid, UsageError
from tranche.core.idle import IdlePolicy
from tranche.core.machine_policy import (
    MachinePolicy,
    PolicyChange,
    differences,
    parse_policy,
    policy_document,
)
from tranche.core.quantity import MIB
from tranche.core.sharing import EVERY_GPU, GpuPolicy, Timeslice
from tranche.core.sharing_policy import SharingPolicy
from tranche.core.state import NodeState
from tranche.core.user_quota import EVERYONE, UserQuota, is_group
from tranche.node.files.files import load_yaml, yaml_text

NODE = NodeState(tuple(uncuttable_gpu(index) for index in range(3)))
FIRST, SECOND, THIRD = (gpu.uuid for gpu in NODE)
NAMES = {"ann": "1001", "bob": "1002"}
OF_UID = {uid: name for name, uid in NAMES.items()}
GONE = "GPU-gone"
WHOLE_FILE = """
apiVersion: tranche.dev/v1
kind: Policy
sharing: mig
timeslice: short
gpus:
- {gpu: 0, sharing: shared, timeslice: long}
- {gpu: THIRD, sharing: off}
quotas:
- {gpus: 2, shares: 8, time: 24h}
- {user: ann, gpus: 1.5, gpuMemory: 160G}
- {group: phd, gpuHours: 200}
fair:
- {group: phd, weight: 3}
idle: {after: 45m, end: true}
preemption: true
fence: {exempt: [ann, 0]}
"""


def key_of(kind: str, name: str) -> str:
    if kind == "group" and name != "gone":
        return f"@{name}"
    if name.isdigit():
        return name
    if name not in NAMES:
        raise UsageError(f"this machine has no user '{name}'")
    return NAMES[name]


def name_of(key: str) -> str:
    return OF_UID.get(key, key)


def parse(document: object, before: MachinePolicy = MachinePolicy()) -> MachinePolicy:  # noqa: B008
    return parse_policy(document, NODE, before, key_of)


def file(**fields: object) -> dict[str, Any]:
    return {"apiVersion": "tranche.dev/v1", "kind": "Policy", **fields}


def test_a_file_says_all_that_the_commands_say() -> None:
    assert parse(load_yaml(WHOLE_FILE.replace("THIRD", THIRD))) == MachinePolicy(
        SharingPolicy(GpuPolicy.MIG, {FIRST: GpuPolicy.SHARED, THIRD: GpuPolicy.OFF}),
        {EVERY_GPU: Timeslice.SHORT, FIRST: Timeslice.LONG},
        {
            EVERYONE: UserQuota(200, shares=8, time_limit=86_400),
            "1001": UserQuota(150, memory=160 * 10**9),
            "@phd": UserQuota(gpu_hours=200),
        },
        {EVERYONE: 1, "@phd": 3},
        IdlePolicy(2700, ends=True),
        True,
        frozenset({1001}),
    )


keys = st.sampled_from([EVERYONE, "0", "1001", "4711", "@phd", "@msc"])
limits = st.builds(
    UserQuota,
    st.none() | st.integers(0, 99_999),
    st.none() | st.integers(1, 2**20).map(lambda each: each * MIB),
    st.none() | st.integers(0, 999),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(0, 999),
    st.none(),
)
policies = st.builds(
    MachinePolicy,
    st.builds(
        SharingPolicy,
        st.sampled_from(GpuPolicy),
        st.dictionaries(st.sampled_from([FIRST, SECOND, GONE]), st.sampled_from(GpuPolicy)),
    ),
    st.dictionaries(st.sampled_from([EVERY_GPU, FIRST, THIRD, GONE]), st.sampled_from(Timeslice)),
    st.dictionaries(keys, limits.filter(lambda each: each != UserQuota())).map(
        lambda each: {k: v._replace(time_limit=None, shares=1) if is_group(k) else v for k, v in each.items()}
    ),
    st.just({}) | st.dictionaries(keys, st.integers(1, 9999)).map(lambda each: {**each, EVERYONE: 1}),
    st.builds(IdlePolicy, st.integers(600, 10**5), st.booleans()),
    st.booleans(),
    st.just(False) | st.frozensets(st.sampled_from([1001, 1002, 4711])),
)


@given(policies)
def test_an_exported_policy_reads_back_as_it_was(policy: MachinePolicy) -> None:
    text = yaml_text(policy_document(policy, name_of))
    assert parse(load_yaml(text), policy) == policy
    assert [*differences(policy, parse(load_yaml(text), policy), str, name_of)] == []


@given(policies, policies, st.sets(st.sampled_from(MachinePolicy._fields)))
def test_a_section_that_a_file_lacks_stays(before: MachinePolicy, wanted: MachinePolicy, lacks: set[str]) -> None:
    after = wanted._replace(**dict.fromkeys(lacks)).over(before)
    for field in MachinePolicy._fields:
        assert getattr(after, field) == getattr(before if field in lacks else wanted, field)
    told = [*differences(before, after, str, name_of)]
    assert (before.over(after) == after) == (not told), "each change is told, and nothing else"


def test_a_part_of_a_file_changes_that_part_only() -> None:
    assert parse(file()) == MachinePolicy()
    assert parse(file(sharing="off")) == MachinePolicy(SharingPolicy(GpuPolicy.OFF), {})
    assert parse(file(quotas=[])) == MachinePolicy(quotas={})
    assert parse(file(fair=True)) == MachinePolicy(weights={EVERYONE: 1})
    assert parse(file(fair=False)) == MachinePolicy(weights={})
    assert parse(file(idle={})) == MachinePolicy(idle=IdlePolicy())
    assert parse(file(fence=False)) == MachinePolicy(fence=False)
    assert parse(file(fence={})) == parse(file(fence=True)) == MachinePolicy(fence=frozenset())


def test_changes_are_told_in_words() -> None:
    before = MachinePolicy(SharingPolicy(), {}, {"1001": UserQuota(100)}, {}, IdlePolicy(), False)
    after = parse(load_yaml(WHOLE_FILE.replace("THIRD", THIRD))).over(before)
    labels = {gpu.uuid: gpu.label for gpu in NODE}
    assert [*differences(before, after, labels.__getitem__, name_of)] == [
        PolicyChange("all GPUs without their own policy", "sharing=auto", "sharing=mig"),
        *sorted(
            (
                PolicyChange("GPU 0", "no policy", "sharing=shared"),
                PolicyChange("GPU 2", "no policy", "sharing=off"),
            ),
            key=lambda each: {"GPU 0": FIRST, "GPU 2": THIRD}[each.subject],
        ),
        PolicyChange("all GPUs without their own policy", "no time slice", "timeslice=short"),
        PolicyChange("GPU 0", "no time slice", "timeslice=long"),
        PolicyChange("the queue", "in order of arrival", "fair"),
        PolicyChange("all users, except root", "no quota", "2 GPUs, 8 shares, 1d for each command"),
        PolicyChange("ann", "1 GPU", "1.5 GPUs, 160G of GPU memory"),
        PolicyChange("@phd", "no quota", "200 GPU-hours in seven days, weight 3"),
        PolicyChange("idle shares", "a share counts as idle after 30m", "an idle hold ends after 45m"),
        PolicyChange("preemptible commands", "not allowed", "allowed"),
        PolicyChange("the fence", "off", "on, exempts ann"),
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "this is not a"),
        ([], "this is not a"),
        ({"kind": "Policy"}, "this is not a"),
        (file(sharing="fair"), "'sharing' in the policy must be one of auto, mig, shared, off"),
        (file(sharing=True), "'sharing' in the policy must be one of"),
        (file(sharing=None), "'sharing' in the policy must be one of"),
        (file(share="mig"), "the policy has unknown fields: share"),
        (file(timeslice="2ms"), "'timeslice' in the policy must be one of default, short, medium, long"),
        (file(gpus={}), "'gpus' must be a list"),
        (file(gpus=[3]), "an entry in 'gpus' must have fields: gpu, sharing, timeslice"),
        (file(gpus=[{"gpu": 0}]), "needs gpu .an index or a UUID., and sharing or timeslice"),
        (file(gpus=[{"sharing": "mig"}]), "needs gpu .an index or a UUID., and sharing or timeslice"),
        (file(gpus=[{"gpu": True, "sharing": "mig"}]), "needs gpu .an index or a UUID."),
        (file(gpus=[{"gpu": 0, "sharing": ["mig"]}]), "'sharing' for GPU 0 must be one of"),
        (file(gpus=[{"gpu": 0, "timeslice": 2}]), "'timeslice' for GPU 0 must be one of"),
        (file(gpus=[{"gpu": 0, "sharing": "mig"}, {"gpu": FIRST, "sharing": "off"}]), f"lists GPU {FIRST} twice"),
        (file(quotas={"gpus": 2}), "'quotas' must be a list"),
        (file(quotas=["ann"]), "an entry in 'quotas' must have fields: user, group, gpus"),
        (file(quotas=[{"user": "ann"}]), "quota for user ann has no limit"),
        (file(quotas=[{}]), "quota for all users has no limit"),
        (file(quotas=[{"user": "ann", "gpu": 2}]), "an entry in 'quotas' has unknown fields: gpu"),
        (file(quotas=[{"user": "eve", "gpus": 2}]), "this machine has no user 'eve'"),
        (file(quotas=[{"user": ["ann"], "gpus": 2}]), "'user' in 'quotas' must be a number or text"),
        (file(quotas=[{"user": "ann", "group": "phd", "gpus": 2}]), "has both a user and a group"),
        (file(quotas=[{"user": "ann", "gpus": 2}, {"user": 1001, "gpus": 2}]), "'quotas' lists user 1001 twice"),
        (file(quotas=[{"gpus": 2}, {"shares": 2}]), "'quotas' lists all users twice"),
        (
            file(quotas=[{"user": "ann", "gpus": None, "shares": 3}]),
            "'gpus' for user ann must be a number or text",
        ),
        (file(idle={"after": None}), "'after' in 'idle' must be a number or text"),
        (file(quotas=[{"gpuMemory": 40}]), "quota for all users: the amount of memory '40' has no unit"),
        (file(quotas=[{"gpus": -1}]), "'-1' is not a number of GPUs"),
        (file(quotas=[{"shares": True}]), "'shares' for all users must be a number or text"),
        (file(quotas=[{"time": "soon"}]), "quota for all users: 'soon' is not a duration"),
        (file(quotas=[{"group": "phd", "time": "4h"}]), "quota for group phd cannot limit time"),
        (file(fair="yes"), "'fair' must be a list"),
        (file(fair=[{"weight": 2}]), "an entry in 'fair' must have a user or a group"),
        (file(fair=[{"user": "ann", "weight": 0}]), "weight of user ann must be a whole number from 1 to 9999"),
        (file(fair=[{"user": "ann", "weight": True}]), "weight of user ann must be a whole number"),
        (file(fair=[{"user": "ann", "weight": 2}, {"user": "ann", "weight": 3}]), "'fair' lists user ann twice"),
        (file(idle="45m"), "'idle' must have fields: after, end"),
        (file(idle={"after": "9m"}), "'after' in 'idle': '9m' is less than 10 minutes"),
        (file(idle={"end": "yes"}), "'end' in 'idle' must be true or false"),
        (file(fence={"exempt": "ann"}), "'exempt' must be a list"),
        (file(fence={"exempt": ["eve"]}), "this machine has no user 'eve'"),
        (file(fence=None), "'fence' must have fields: exempt"),
    ],
)
def test_a_file_that_says_something_else_is_refused(document: object, message: str) -> None:
    with pytest.raises(PolicyInvalid, match=message):
        parse(document)


def test_a_file_may_name_a_gpu_that_is_gone_only_if_the_policy_does_already() -> None:
    for name in (7, GONE):
        with pytest.raises(GpuNotFound, match=f"no GPU {name}"):
            parse(file(gpus=[{"gpu": name, "sharing": "mig"}]))
    before = MachinePolicy(SharingPolicy(None, {GONE: GpuPolicy.OFF}))
    wanted = parse(file(gpus=[{"gpu": GONE, "sharing": "mig"}]), before)
    assert wanted.sharing == SharingPolicy(None, {GONE: GpuPolicy.MIG})


def test_a_file_may_name_a_deleted_group_only_if_the_policy_does_already() -> None:
    document = file(quotas=[{"group": "gone", "gpus": 1}])
    with pytest.raises(PolicyInvalid, match="no user 'gone'"):
        parse(document)
    before = MachinePolicy(weights={EVERYONE: 1, "@gone": 2})
    assert parse(document, before).quotas == {"@gone": UserQuota(100)}
