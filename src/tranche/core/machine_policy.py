"""All that an administrator decides about a shared machine, as one file says it, and what such a file would change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tranche.core.errors import PolicyInvalid, UsageError
from tranche.core.idle import IdlePolicy
from tranche.core.quantity import format_duration, memory_option, parse_duration
from tranche.core.sharing import EVERY_GPU, GpuPolicy, Timeslice
from tranche.core.sharing_policy import SharingPolicy, gpu_named
from tranche.core.state import NodeState
from tranche.core.user_quota import EVERYONE, GROUP, UserQuota, is_fair, is_group, parse_quota

FORMAT_VERSION = "tranche.dev/v1"
KIND = "Policy"
_SHORTEST_IDLE = 600
_GPU_FIELDS = ("sharing", "timeslice", "gpus")
_OTHER_SECTIONS = ("quotas", "fair", "idle", "preemption", "fence")
_LIMITS = ("gpus", "gpuMemory", "shares", "time", "gpuHours")
_MOST_WEIGHT = 9999

KeyOf = Callable[[str, str], str]
"""The key in quotas of a `user` or a `group` (the first argument) of that name; raises UsageError if the machine has none."""


class MachinePolicy(NamedTuple):
    """What `tranche policy` sets. In a file, None is a section that the file does not change.

    `timeslices` are by UUID, or EVERY_GPU. `quotas` are by key, without weights. `weights` are those of a fair queue, by key;
    without any, the queue is in order of arrival. `preemption` allows preemptible commands. `fence` has the exempt uids, or is
    False for no fence.
    """

    sharing: SharingPolicy | None = None
    timeslices: Mapping[str, Timeslice] | None = None
    quotas: Mapping[str, UserQuota] | None = None
    weights: Mapping[str, int] | None = None
    idle: IdlePolicy | None = None
    preemption: bool | None = None
    fence: frozenset[int] | Literal[False] | None = None

    def over(self, before: MachinePolicy) -> MachinePolicy:
        """This policy, with the sections of `before` that it does not change."""
        return before._replace(**{field: value for field, value in self._asdict().items() if value is not None})

    @property
    def user_quotas(self) -> Mapping[str, UserQuota]:
        """The quotas with their weights, by key."""
        quotas, weights = self.quotas or {}, self.weights or {}
        found = {key: quotas.get(key, UserQuota())._replace(weight=weights.get(key)) for key in (*quotas, *weights)}
        return {key: found[key] for key in sorted(found) if found[key] != UserQuota()}

    def with_sharing(self, gpu_uuids: Sequence[str], use: GpuPolicy | None) -> MachinePolicy:
        """A copy with that use of those GPUs, or of all without their own policy; None removes it."""
        return self._replace(sharing=(self.sharing or SharingPolicy()).with_word(tuple(gpu_uuids), use))

    def with_timeslice(self, gpu_uuids: Sequence[str], length: Timeslice | None) -> MachinePolicy:
        """A copy with that time slice for those GPUs, or for all without one of their own; None removes it."""
        named = gpu_uuids or (EVERY_GPU,)
        others = {uuid: each for uuid, each in (self.timeslices or {}).items() if uuid not in named}
        return self._replace(timeslices=others if length is None else {**others, **dict.fromkeys(named, length)})

    def with_limits(self, keys: Collection[str], limits: UserQuota | None) -> MachinePolicy:
        """A copy with these limits for users and groups. Limits that `limits` lacks stay; None removes all of them."""
        before = self.quotas or {}
        new = {key: UserQuota() if limits is None else limits.over(before.get(key)) for key in keys}
        return self._replace(quotas={**before, **new})

    def with_weight(self, keys: Collection[str], weight: int | None) -> MachinePolicy:
        """A copy with a fair queue, and that weight for users and groups.

        Without a weight, those named lose theirs; if none is named, the queue is in order of arrival, and all weights go.
        """
        before = self.weights or {}
        if weight is None:
            return self._replace(weights={key: each for key, each in before.items() if keys and key not in keys})
        return self._replace(weights={**before, EVERYONE: 1, **dict.fromkeys(keys, weight)})


def parse_policy(document: object, node: NodeState, before: MachinePolicy, key_of: KeyOf) -> MachinePolicy:
    """The policy in a decoded YAML or JSON file, for the GPUs of that node, and the GPUs and groups that `before` names.

    Raises PolicyInvalid, or GpuNotFound for an unknown GPU.
    """
    if not isinstance(document, dict) or document.get("apiVersion") != FORMAT_VERSION or document.get("kind") != KIND:
        raise PolicyInvalid(f"this is not a {FORMAT_VERSION} {KIND}", hint="see: tranche policy apply --help")
    _refuse_unknown(document, ("apiVersion", "kind", *_GPU_FIELDS, *_OTHER_SECTIONS), "the policy")
    sharing, timeslices = _gpu_section(document, node, before)
    known = before.user_quotas

    def key(kind: str, name: str) -> str:
        if kind == "group" and f"{GROUP}{name}" in known:
            return f"{GROUP}{name}"  # it may have been deleted
        try:
            return key_of(kind, name)
        except UsageError as error:
            raise PolicyInvalid(error.message, hint=error.hint) from error

    return MachinePolicy(
        sharing,
        timeslices,
        _quotas(document["quotas"], key) if "quotas" in document else None,
        _weights(document["fair"], key) if "fair" in document else None,
        _idle(document["idle"]) if "idle" in document else None,
        _preemption(document["preemption"]) if "preemption" in document else None,
        _fence(document["fence"], key) if "fence" in document else None,
    )


def _gpu_section(
    document: Mapping[str, Any], node: NodeState, before: MachinePolicy
) -> tuple[SharingPolicy | None, Mapping[str, Timeslice] | None]:
    if not any(field in document for field in _GPU_FIELDS):
        return None, None
    every = _use(document["sharing"], "in the policy") if "sharing" in document else None
    gpus: dict[str, GpuPolicy] = {}
    lengths = {EVERY_GPU: _length(document["timeslice"], "in the policy")} if "timeslice" in document else {}
    named: set[str] = set()
    known = {*(before.sharing or SharingPolicy()).gpus, *(before.timeslices or {})} - {EVERY_GPU}
    for entry in _list(document.get("gpus", []), "gpus"):
        given = _fields(entry, ("gpu", "sharing", "timeslice"), "an entry in 'gpus'")
        name = given.get("gpu")
        if isinstance(name, bool) or not isinstance(name, int | str) or len(given) == 1:
            raise PolicyInvalid("an entry in 'gpus' needs gpu (an index or a UUID), and sharing or timeslice")
        uuid = name if isinstance(name, str) and name in known else gpu_named(str(name), node).uuid
        if uuid in named:
            raise PolicyInvalid(f"the policy lists GPU {name} twice")
        named.add(uuid)
        if "sharing" in given:
            gpus[uuid] = _use(given["sharing"], f"for GPU {name}")
        if "timeslice" in given:
            lengths[uuid] = _length(given["timeslice"], f"for GPU {name}")
            if any(gpu.uuid == uuid and gpu.mig_enabled for gpu in node):
                raise PolicyInvalid(f"GPU {name} is in MIG mode, in which the driver does not support time slices")
    return SharingPolicy(every, gpus), lengths


def _use(value: object, where: str) -> GpuPolicy:
    word = "off" if value is False else value  # YAML 1.1 reads off as false
    if not isinstance(word, str) or word not in list(GpuPolicy):
        raise PolicyInvalid(f"'sharing' {where} must be one of {', '.join(GpuPolicy)}")
    return GpuPolicy(word)


def _length(value: object, where: str) -> Timeslice:
    if not isinstance(value, str) or value not in list(Timeslice):
        raise PolicyInvalid(f"'timeslice' {where} must be one of {', '.join(Timeslice)}")
    return Timeslice(value)


def _quotas(value: object, key_of: KeyOf) -> Mapping[str, UserQuota]:
    found: dict[str, UserQuota] = {}
    for entry in _list(value, "quotas"):
        given = _fields(entry, ("user", "group", *_LIMITS), "an entry in 'quotas'")
        key, who = _key(given, key_of, "quotas")
        limits = [_text(given[field], f"'{field}' for {who}") if field in given else None for field in _LIMITS]
        if limits == [None] * len(_LIMITS):
            raise PolicyInvalid(f"the quota for {who} has no limit; the limits are {', '.join(_LIMITS)}")
        if key in found:
            raise PolicyInvalid(f"'quotas' lists {who} twice")
        if is_group(key) and "time" in given:
            raise PolicyInvalid(f"the quota for {who} cannot limit time, because that limit applies to each command")
        try:
            found[key] = parse_quota(*limits)
        except UsageError as error:
            raise PolicyInvalid(f"the quota for {who}: {error.message}") from error
    return found


def _weights(value: object, key_of: KeyOf) -> Mapping[str, int]:
    if isinstance(value, bool):
        return {EVERYONE: 1} if value else {}
    found = {EVERYONE: 1}
    for entry in _list(value, "fair"):
        given = _fields(entry, ("user", "group", "weight"), "an entry in 'fair'")
        key, who = _key(given, key_of, "fair")
        weight = given.get("weight")
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= _MOST_WEIGHT:
            raise PolicyInvalid(f"the weight of {who} must be a whole number from 1 to {_MOST_WEIGHT}")
        if key == EVERYONE:
            raise PolicyInvalid("an entry in 'fair' must have a user or a group")
        if key in found:
            raise PolicyInvalid(f"'fair' lists {who} twice")
        found[key] = weight
    return found


def _idle(value: object) -> IdlePolicy:
    given = _fields(value, ("after", "end"), "'idle'")
    ends = given.get("end", False)
    if not isinstance(ends, bool):
        raise PolicyInvalid("'end' in 'idle' must be true or false")
    try:
        after = idle_seconds(_text(given["after"], "'after' in 'idle'")) if "after" in given else IdlePolicy().after
        return IdlePolicy(after, ends)
    except UsageError as error:
        raise PolicyInvalid(f"'after' in 'idle': {error.message}", hint=error.hint) from error


def idle_seconds(text: str) -> int:
    """The time after which a share counts as idle; UsageError unless it is one of at least ten minutes."""
    seconds = round(parse_duration(text))
    if seconds < _SHORTEST_IDLE:
        raise UsageError(f"'{text}' is less than 10 minutes", hint="for example: 45m")
    return seconds


def _preemption(value: object) -> bool:
    if not isinstance(value, bool):
        raise PolicyInvalid("'preemption' must be true or false")
    return value


def _fence(value: object, key_of: KeyOf) -> frozenset[int] | Literal[False]:
    if value is False:
        return False
    if value is True:
        return frozenset()
    given = _fields(value, ("exempt",), "'fence'")
    users = [_text(each, "a user in 'exempt' in 'fence'") for each in _list(given.get("exempt", []), "exempt")]
    return frozenset(int(key_of("user", each)) for each in users) - {0}


def _key(given: Mapping[str, Any], key_of: KeyOf, of: str) -> tuple[str, str]:
    """The key of the entry's user or group, and the words for it."""
    kinds = [kind for kind in ("user", "group") if kind in given]
    if not kinds:
        return EVERYONE, "all users"
    if len(kinds) == 2:
        raise PolicyInvalid(f"an entry in '{of}' has both a user and a group")
    name = _text(given[kinds[0]], f"'{kinds[0]}' in '{of}'")
    return key_of(kinds[0], name), f"{kinds[0]} {name}"


def _fields(value: object, names: Sequence[str], what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise PolicyInvalid(f"{what} must have fields: {', '.join(names)}")
    _refuse_unknown(value, names, what)
    return value


def _refuse_unknown(value: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    if unknown := sorted(map(str, value.keys() - set(names))):
        raise PolicyInvalid(
            f"{what} has unknown fields: {', '.join(unknown)}", hint=f"the known fields are {', '.join(names)}"
        )


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise PolicyInvalid(f"'{name}' must be a list")
    return value


def _text(value: object, what: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PolicyInvalid(f"{what} must be a number or text")
    return str(value)


def policy_document(policy: MachinePolicy, name_of: Callable[[str], str]) -> dict[str, Any]:
    """The whole policy as a file that `parse_policy` reads; `name_of` names the user or group of a key."""
    sharing, timeslices = policy.sharing or SharingPolicy(), policy.timeslices or {}
    weights = {key: weight for key, weight in (policy.weights or {}).items() if key != EVERYONE}
    gpus = [
        {"gpu": uuid}
        | ({"sharing": str(sharing.gpus[uuid])} if uuid in sharing.gpus else {})
        | ({"timeslice": str(timeslices[uuid])} if uuid in timeslices else {})
        for uuid in sorted({*sharing.gpus, *timeslices} - {EVERY_GPU})
    ]
    idle = policy.idle or IdlePolicy()
    every = timeslices.get(EVERY_GPU)
    return {
        "apiVersion": FORMAT_VERSION,
        "kind": KIND,
        "sharing": str(sharing.every or GpuPolicy.AUTO),
        **({} if every is None else {"timeslice": str(every)}),
        "gpus": gpus,
        "quotas": [_who(key, name_of) | _limits(each) for key, each in (policy.quotas or {}).items()],
        "fair": [_who(key, name_of) | {"weight": weight} for key, weight in weights.items()]
        or is_fair(policy.user_quotas),
        "idle": {"after": format_duration(idle.after), "end": idle.ends},
        "preemption": bool(policy.preemption),
        "fence": {"exempt": [name_of(str(uid)) for uid in sorted(policy.fence)]}
        if isinstance(policy.fence, frozenset)
        else False,
    }


def _who(key: str, name_of: Callable[[str], str]) -> dict[str, str]:
    if key == EVERYONE:
        return {}
    return {"group": key.removeprefix(GROUP)} if is_group(key) else {"user": name_of(key)}


def _limits(quota: UserQuota) -> dict[str, str | int | float]:
    found: dict[str, str | int | float | None] = {
        "gpus": None if quota.gpu_percent is None else quota.gpu_percent / 100,
        "gpuMemory": None if quota.memory is None else memory_option(quota.memory),
        "shares": quota.shares,
        "time": None if quota.time_limit is None else format_duration(quota.time_limit),
        "gpuHours": quota.gpu_hours,
    }
    return {field: value for field, value in found.items() if value is not None}


class PolicyChange(NamedTuple):
    """What an administrator's decision is about, and the decision `before` and `after`, in words."""

    subject: str
    before: str
    after: str


def differences(
    before: MachinePolicy, after: MachinePolicy, label_of: Callable[[str], str], name_of: Callable[[str], str]
) -> Iterator[PolicyChange]:
    """What differs between two whole policies; `label_of` names a GPU by UUID, `name_of` the user or group of a key."""
    decisions = _all_decisions(before, after, label_of, name_of)
    yield from (each for each in decisions if each.before != each.after)


def _all_decisions(
    before: MachinePolicy, after: MachinePolicy, label_of: Callable[[str], str], name_of: Callable[[str], str]
) -> Iterator[PolicyChange]:
    others = "all GPUs without their own policy"
    old, new = before.sharing or SharingPolicy(), after.sharing or SharingPolicy()
    yield PolicyChange(others, *(f"sharing={each.every or GpuPolicy.AUTO}" for each in (old, new)))
    for uuid in sorted({*old.gpus, *new.gpus}):
        words = (f"sharing={each.gpus[uuid]}" if uuid in each.gpus else "no policy" for each in (old, new))
        yield PolicyChange(label_of(uuid), *words)
    was, now = before.timeslices or {}, after.timeslices or {}
    for uuid in sorted({*was, *now}):
        words = (f"timeslice={each[uuid]}" if uuid in each else "no time slice" for each in (was, now))
        yield PolicyChange(label_of(uuid) if uuid else others, *words)
    queue = ("fair" if is_fair(each.user_quotas) else "in order of arrival" for each in (before, after))
    yield PolicyChange("the queue", *queue)
    both = before.user_quotas, after.user_quotas
    for key in sorted({*both[0], *both[1]}):
        quotas = (each.get(key, UserQuota()) for each in both)
        shown = (each._replace(weight=None) if key == EVERYONE else each for each in quotas)
        words = ("no quota" if each == UserQuota() else str(each) for each in shown)
        yield PolicyChange(name_of(key) if key else "all users, except root", *words)
    yield PolicyChange("idle shares", *(str(each.idle or IdlePolicy()) for each in (before, after)))
    allowed = ("allowed" if each.preemption else "not allowed" for each in (before, after))
    yield PolicyChange("preemptible commands", *allowed)
    yield PolicyChange("the fence", *(_fence_words(each.fence, name_of) for each in (before, after)))


def _fence_words(fence: frozenset[int] | Literal[False] | None, name_of: Callable[[str], str]) -> str:
    if not isinstance(fence, frozenset):
        return "off"
    exempt = sorted(name_of(str(uid)) for uid in fence - {0})
    return f"on, exempts {', '.join(exempt)}" if exempt else "on"
