"""A request as the spec of a resource claim, which the scheduler serves by itself. Pure.

The scheduler takes the first device that fits, in the order in which nodes list theirs: the smallest slices first, then shared
devices, then whole GPUs. So an amount of memory is one demand on all devices. A share of a GPU is a different amount on each size
of GPU, so it lists its alternatives; a claim can have eight at most.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from tranche.core.errors import DoesNotFit, SharingUnavailable, TooManyGpus, UsageError
from tranche.core.json_text import read_json
from tranche.core.quantity import MIB
from tranche.core.request import GpuMemory, GpuShare, Isolation, MigSlice, Request, WholeGpus, parse_request
from tranche.core.sharing import Sharing
from tranche.kubernetes.claims.vocabulary import (
    DRIVER,
    AttributeName,
    CapacityName,
    DeviceClassName,
    profile_class,
)

API_VERSION = f"{DRIVER}/v1"
KIND = "ShareRequest"


def share_request(request: Request) -> dict[str, Any]:
    """The parameters that keep the request in a claim: configuration of the driver, which the scheduler does not read.

    From them the node's agent knows the weakest isolation that the request accepts, and `tranche ps` shows the request.
    """
    return {"apiVersion": API_VERSION, "kind": KIND, "request": str(request)}


def read_share_request(parameters: Mapping[str, Any]) -> Request:
    """The request in a claim's parameters; UsageError when there is none, or another version wrote it."""
    kind = (parameters.get("apiVersion"), parameters.get("kind"))
    if kind != (API_VERSION, KIND):
        raise UsageError(
            f"the claim's parameters are {kind[0]} {kind[1]}; expected {API_VERSION} {KIND}",
            hint="create the claim with tranche submit, or remove its config",
        )
    text = parameters.get("request")
    if not isinstance(text, str):
        raise UsageError("the claim's parameters contain no request", hint="write it as request: --gpu-memory 4Gi")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"'{text}' is not a valid request: {error}") from error
    options = {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=False)
    }
    known = all(name.startswith("--") for name in words[::2]) and set(options) <= _OPTIONS
    if not known or 2 * len(options) != len(words):
        raise UsageError(f"'{text}' is not a valid request", hint="use the options of tranche submit")
    return parse_request(**options)


_OPTIONS = frozenset(("gpus", "gpu", "gpu_memory", "mig_profile", "count", "compute", "isolation", "gpu_model"))


_ATTRIBUTE = f'device.attributes["{DRIVER}"].'
_SIZE = f"{_ATTRIBUTE}{AttributeName.CARD_MEMORY} == "
_ISOLATION = f"{_ATTRIBUTE}{AttributeName.ISOLATION} == "
_ISOLATIONS = f"{_ATTRIBUTE}{AttributeName.ISOLATION} in "
_MECHANISM = f"{_ATTRIBUTE}{AttributeName.MECHANISM} != "
_MODEL = f"{_ATTRIBUTE}{AttributeName.MODEL}.lowerAscii().contains("


@dataclass(frozen=True, slots=True)
class DeviceCondition:
    """What a device has to meet; an empty field asks for nothing. `card_memory` in MiB, `model` in lower case."""

    card_memory: int | None = None
    isolations: frozenset[str] = frozenset()
    not_mechanism: str = ""
    model: str = ""


NO_CONDITIONS = DeviceCondition()


def write_conditions(wanted: DeviceCondition) -> Iterator[str]:
    """One expression per condition. JSON's numbers, strings and lists are valid CEL."""
    if wanted.card_memory is not None:
        yield f"{_SIZE}{wanted.card_memory}"
    if len(wanted.isolations) == 1:
        yield _ISOLATION + json.dumps(*wanted.isolations)
    elif wanted.isolations:
        yield _ISOLATIONS + json.dumps(sorted(wanted.isolations))
    if wanted.not_mechanism:
        yield _MECHANISM + json.dumps(wanted.not_mechanism)
    if wanted.model:
        yield f"{_MODEL}{json.dumps(wanted.model)})"


def read_conditions(expressions: Iterable[str]) -> tuple[DeviceCondition, tuple[str, ...]]:
    """The conditions in expressions of `write_conditions`' forms, and all other expressions unchanged."""
    found, unread = NO_CONDITIONS, []
    for each in expressions:
        known = _with_expression(found, each)
        found = known or found
        if known is None:
            unread.append(each)
    return found, tuple(unread)


def _with_expression(found: DeviceCondition, expression: str) -> DeviceCondition | None:
    start = next(
        (each for each in (_SIZE, _ISOLATION, _ISOLATIONS, _MECHANISM, _MODEL) if expression.startswith(each)), ""
    )
    text = expression.removeprefix(start)
    if not start or (start == _MODEL and not text.endswith(")")):
        return None
    try:
        value: Any = read_json(text.removesuffix(")") if start == _MODEL else text)
    except ValueError:
        return None
    if start == _SIZE:
        return replace(found, card_memory=value) if type(value) is int and value >= 0 else None
    if start == _ISOLATIONS:
        words = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
        return replace(found, isolations=frozenset(words)) if words and words == value else None
    if not isinstance(value, str):
        return None
    if start == _ISOLATION:
        return replace(found, isolations=frozenset((value,)))
    return replace(found, model=value) if start == _MODEL else replace(found, not_mechanism=value)


REQUEST_NAME = "gpu"
"""The name of a claim's one request, by which containers ask for it."""

MOST_DEVICES = 32
"""The API's limit of devices for a claim: `AllocationResultsMaxSize` of `resource.k8s.io`."""

MOST_ALTERNATIVES = 8
"""The API's limit of alternatives for a request."""

_LONGEST_MODEL = 64  # the characters of a string attribute
# Every known grid of memory slices divides this number: 4, 8 and 12.
_GRIDS = 24
_UNITS = (
    ("Ti", 1024**4),
    ("T", 10**12),
    ("Gi", 1024**3),
    ("G", 10**9),
    ("Mi", MIB),
    ("M", 10**6),
    ("Ki", 1024),
    ("k", 1000),
)


@dataclass(frozen=True, slots=True)
class SharedGpuModel:
    """GPUs of one size that are shared uncut. `memory` is what programs can have of one, in MiB, as its devices say. `room` is
    the least that can be given away of one, in bytes. `gpus` is how many there are on nodes whose mode offers them; 0 where only
    another mode would offer them.
    """

    memory: int
    room: int
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """`devices` is the `spec.devices` of a claim. `left_out` are the sizes of GPUs for which the share could not be listed."""

    devices: Mapping[str, Any]
    left_out: tuple[SharedGpuModel, ...] = ()


def claim_spec(request: Request, cards: Sequence[SharedGpuModel] = ()) -> ClaimSpec:
    """The claim for the request, on a cluster that shares GPUs of these sizes.

    Raises:
        SharingUnavailable: the request has a condition that no device of a cluster meets.
        TooManyGpus: it asks for more devices than a claim can have.
        DoesNotFit: it asks for a model with a name that none has.
    """
    _refuse_impossible(request)
    found, left_out = _request(request, cards)
    devices: dict[str, Any] = {"requests": [{"name": REQUEST_NAME, **found}]}
    if request.count > 1:
        distinct = f"{DRIVER}/{AttributeName.UUID}"
        devices["constraints"] = [{"requests": [REQUEST_NAME], "distinctAttribute": distinct}]
    devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": share_request(request)}}]
    return ClaimSpec(devices, left_out)


def refuse_alternatives(request: Request, devices: Mapping[str, Any]) -> None:
    """UsageError for a claim that lists alternatives: Kueue's queues do not admit it. Source: Kueue 0.20, `pkg/dra/claims.go`."""
    if any("firstAvailable" in each for each in devices["requests"]):
        raise UsageError(
            f"a queue cannot count {request}: the claim lists alternatives, and Kueue does not admit such claims",
            hint="ask for a slice with --mig-profile or, if the queue counts amounts, with --gpu-memory",
        )


def needs_cards(request: Request) -> bool:
    """Whether the claim depends on the sizes of the cluster's GPUs."""
    return isinstance(request.demand, GpuShare) and _parts_serve(request, request.demand)


def _request(request: Request, cards: Sequence[SharedGpuModel]) -> tuple[dict[str, Any], tuple[SharedGpuModel, ...]]:
    match request.demand:
        case WholeGpus(count):
            return {"exactly": _exactly(request, DeviceClassName.WHOLE, count=count)}, ()
        case MigSlice(profile):
            return {"exactly": _exactly(request, profile_class(profile))}, ()
        case GpuMemory(amount):
            capacity = {CapacityName.MEMORY: _quantity(amount)}
            return {"exactly": _exactly(request, DeviceClassName.ANY, capacity, _shared_conditions(request))}, ()
        case GpuShare():
            return _share(request, request.demand, cards)


def _share(
    request: Request, demand: GpuShare, cards: Sequence[SharedGpuModel]
) -> tuple[dict[str, Any], tuple[SharedGpuModel, ...]]:
    percent = {CapacityName.SHARE: str(_percent(demand.share))}
    alone = {"slice": _exactly(request, DeviceClassName.SLICE, percent)} if request.compute is None else {}
    # Whole, unless another share of the same size would fit beside it.
    whole = request.compute is None and (request.isolation is Isolation.HARD or demand.share > Fraction(1, 2))
    last = {"whole": _exactly(request, DeviceClassName.WHOLE)} if whole else {}
    wanted = sorted(cards, key=lambda each: (-each.gpus, each.memory)) if _parts_serve(request, demand) else []
    room = MOST_ALTERNATIVES - len(alone) - len(last)
    kept, left_out = sorted(wanted[:room], key=lambda each: each.memory), wanted[room:]
    parts = {f"shared-{each.memory}mi": _part_of(each, request, demand) for each in kept}
    alternatives = alone | parts | last
    if not alternatives:
        raise SharingUnavailable(
            f"no GPU in this cluster is shared in a way that can serve {request}",
            hint="ask for an amount with --gpu-memory, or omit --compute",
        )
    if len(alternatives) == 1:
        return {"exactly": next(iter(alternatives.values()))}, tuple(left_out)
    return {"firstAvailable": [{"name": name, **each} for name, each in alternatives.items()]}, tuple(left_out)


def _part_of(cards: SharedGpuModel, request: Request, demand: GpuShare) -> dict[str, Any]:
    memory = max(int(demand.share * cards.room) // MIB, 1)
    capacity = {CapacityName.MEMORY: _quantity(memory * MIB)}
    conditions = replace(_shared_conditions(request), card_memory=cards.memory)
    return _exactly(request, DeviceClassName.SHARED, capacity, conditions)


def _parts_serve(request: Request, demand: GpuShare) -> bool:
    """Whether a part of a shared device serves the share. All of a GPU means exclusive use, unless its compute has a ceiling."""
    return request.isolation is not Isolation.HARD and (demand.share < 1 or request.compute is not None)


def _exactly(
    request: Request,
    device_class: str,
    capacity: Mapping[CapacityName, str] | None = None,
    conditions: DeviceCondition = NO_CONDITIONS,
    *,
    count: int | None = None,
) -> dict[str, Any]:
    wanted = {str(name): amount for name, amount in (capacity or {}).items()}
    if request.compute is not None:
        wanted[str(CapacityName.COMPUTE)] = str(request.compute)
    found: dict[str, Any] = {"deviceClassName": str(device_class)}
    number = request.count if count is None else count
    if number != 1:
        found["count"] = number
    if wanted:
        found["capacity"] = {"requests": wanted}
    if selectors := list(write_conditions(replace(conditions, model=request.gpu_model.lower()))):
        found["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    return found


def _shared_conditions(request: Request) -> DeviceCondition:
    """Conditions for a device that others may share."""
    accepted = {Isolation.HARD: ("hard",), Isolation.SOFT: ("hard", "soft")}.get(request.isolation, ())
    # A program can use one MPS daemon, and each device has its own.
    several = request.count > 1 and request.isolation is not Isolation.HARD
    return DeviceCondition(isolations=frozenset(accepted), not_mechanism=Sharing.MPS if several else "")


def _percent(share: Fraction) -> int:
    """The least `share` capacity that serves it: slices state their part of the memory slices in percent, rounded down."""
    parts = -(-share.numerator * _GRIDS // share.denominator)
    return min(100 * parts // _GRIDS, -(-100 * share.numerator // share.denominator))


def _quantity(amount: int) -> str:
    """Bytes as the shortest quantity that is exactly as much: `4Gi`, `4G`, `4864Mi`."""
    return next((f"{amount // size}{unit}" for unit, size in _UNITS if amount % size == 0), str(amount))


def _refuse_impossible(request: Request) -> None:
    if request.compute is not None and request.count > 1:
        raise SharingUnavailable(
            f"no cluster can serve {request}: MPS enforces the compute limit, and a program can use MPS on only one "
            "GPU",
            hint="ask for one share, or omit --compute",
        )
    number = request.demand.count if isinstance(request.demand, WholeGpus) else request.count
    if number > MOST_DEVICES:
        raise TooManyGpus(
            f"{request} asks for {number} GPUs, but a claim can have at most {MOST_DEVICES}",
            hint="ask for fewer GPUs per pod, and use more pods",
        )
    if len(request.gpu_model) > _LONGEST_MODEL:
        raise DoesNotFit(
            f"--gpu-model has {len(request.gpu_model)} characters, more than any GPU's name",
            hint="use a part of the name, such as A100",
        )
