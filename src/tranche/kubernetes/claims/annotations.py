"""A pod's annotations as a request: Tranche's own, and four of Run:ai's and KAI's. Pure.

`tranche.dev/NAME` is the option `--NAME` of `tranche submit`. `gpu-memory` (in MiB), `gpu-fraction`, `gpu-fraction-num-devices`
and `gpu-fraction-container-name` mean what they mean to KAI.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tranche.core.errors import UsageError
from tranche.core.request import Request, parse_request
from tranche.core.spelling import did_you_mean
from tranche.kubernetes.claims.quantity import read_quantity
from tranche.kubernetes.claims.vocabulary import SHARE_GATE, SHARE_RESOURCE

DOMAIN = "tranche.dev/"
CONTAINER = f"{DOMAIN}container"
"""The container that gets the share."""

_DEMANDS = ("gpus", "gpu", "gpu-memory", "mig-profile")
_CONDITIONS = ("count", "compute", "isolation", "gpu-model")
_OPTIONS: Mapping[str, str] = {
    **{f"{DOMAIN}{name}": name for name in (*_DEMANDS, *_CONDITIONS)},
    "gpu-memory": "gpu-memory",
    "gpu-fraction": "gpu",
    "gpu-fraction-num-devices": "count",
}
_CONTAINERS = (CONTAINER, "gpu-fraction-container-name")
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")

FOREIGN_ANNOTATIONS = tuple(name for name in (*_OPTIONS, *_CONTAINERS) if not name.startswith(DOMAIN))
"""The words of Run:ai and KAI."""


@dataclass(frozen=True, slots=True)
class AnnotatedRequest:
    """What a pod asks for by annotations. `container` gets it; "" where none is named."""

    request: Request
    container: str = ""


def pod_demand(annotations: Mapping[str, str]) -> AnnotatedRequest | None:
    """What the annotations ask for; None when they ask for nothing.

    Raises:
        UsageError: they ask for two things, have conditions but no demand, or make no valid request; it names the annotations.
    """
    _refuse_unknown(annotations)
    given = {name: _OPTIONS[name] for name in _OPTIONS if name in annotations}
    containers = [name for name in _CONTAINERS if name in annotations]
    demands = [name for name, option in given.items() if option in _DEMANDS]
    if not given and not containers:
        return None
    if not demands:
        raise UsageError(
            f"the annotation {next(iter((*given, *containers)))} modifies a request for a share, but no annotation "
            "requests one",
            hint=f"add {DOMAIN}gpu-memory: 4Gi, {DOMAIN}gpu: '0.5', {DOMAIN}mig-profile: 1g.5gb or {DOMAIN}gpus: '1'",
        )
    if len(demands) > 1:
        raise UsageError(
            f"the annotations {_joined(demands)} request {len(demands)} different things", hint="keep only one of them"
        )
    names: dict[str, str] = {}
    for name, option in given.items():
        if option in names:
            raise UsageError(
                f"the annotations {names[option]} and {name} mean the same thing", hint="keep only one of them"
            )
        names[option] = name
    try:
        request = parse_request(
            **{option.replace("-", "_"): _value(name, annotations) for option, name in names.items()}
        )
    except UsageError as error:
        raise UsageError(in_annotations(error.message, names), hint=in_annotations(error.hint, names)) from error
    return AnnotatedRequest(request, _container(annotations, containers))


def _value(name: str, annotations: Mapping[str, str]) -> str:
    """The annotation's value in the option's form: KAI gives an amount of memory as a number of MiB."""
    value = annotations[name].strip()
    return f"{value}Mi" if name == "gpu-memory" and value.isdecimal() else value


def annotations_of(request: Request) -> dict[str, str]:
    """The annotations by which a pod makes the request."""
    words = shlex.split(str(request))
    return {
        f"{DOMAIN}{option.removeprefix('--')}": value for option, value in zip(words[::2], words[1::2], strict=True)
    }


def _container(annotations: Mapping[str, str], given: list[str]) -> str:
    named = {annotations[name].strip() for name in given}
    if len(named) > 1:
        raise UsageError(f"the annotations {_joined(given)} name two containers", hint="keep only one of them")
    name = next(iter(named), "")
    if given and not name:
        raise UsageError(f"the annotation {given[0]} names no container", hint="remove it to use the first container")
    return name


def _refuse_unknown(annotations: Mapping[str, str]) -> None:
    known = [*_OPTIONS, *_CONTAINERS]
    for name in annotations:
        if name.startswith(DOMAIN) and name not in (*known, SHARE_GATE):
            raise UsageError(
                f"'{name}' is not a Tranche annotation",
                hint=did_you_mean(name, known)
                or (f"Tranche's pod annotations are: {_joined([each for each in known if DOMAIN in each])}"),
            )


def in_annotations(text: str, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """The text with options replaced by annotations: those in `names`, by option, else Tranche's own."""

    def annotation(match: re.Match[str]) -> str:
        option = match[1]
        return names.get(option, f"{DOMAIN}{option}") if option in (*_DEMANDS, *_CONDITIONS) else match[0]

    return _OPTION.sub(annotation, text)


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True, slots=True)
class GatedRequest:
    """What a pod asks for whose share a controller chooses.

    `request` is None where it asks for none, or where the request is invalid. `wrong` says why nothing can be chosen for the pod;
    `never` why its node would refuse any choice.
    """

    request: Request | None = None
    wrong: str = ""
    never: str = ""


def gate_demand(annotations: Mapping[str, Any], spec: Mapping[str, Any]) -> GatedRequest:
    """The request of a pod with these annotations, if it waits at our gate or asks for the resource.

    A node's agent hands a share only to a container that keeps running and asks for one unit of the resource. It refuses anything
    else a pod asks for, forever, so the controller must choose nothing for such a pod.
    """
    waits = any(each.get("name") == SHARE_GATE for each in spec.get("schedulingGates") or ())
    asking = tuple(_asking(spec))
    if not waits and not asking:
        return GatedRequest()
    never = _never(asking)
    try:
        demand = pod_demand(annotations)
    except UsageError as error:
        return GatedRequest(None, error.message, never)
    if demand is None:
        return GatedRequest(None, "it waits for a share, but no annotation requests one", never)
    return GatedRequest(demand.request, never, never)


def _never(asking: tuple[tuple[str, int, bool], ...]) -> str:
    if not asking:
        return f"no container requests {SHARE_RESOURCE}, so none can receive the share"
    for name, amount, stays in asking:
        if not stays:
            return (
                f"init container '{name}' requests {SHARE_RESOURCE}, but only a regular container can receive a share"
            )
        if amount != 1:
            return f"container '{name}' requests {amount} of {SHARE_RESOURCE}, but a container can have only one share"
    return ""


def _asking(spec: Mapping[str, Any]) -> Iterator[tuple[str, int, bool]]:
    """The containers that ask for the resource, the number they ask for, and whether they keep running."""
    for kind in ("initContainers", "containers"):
        for each in spec.get(kind) or ():
            resources = each.get("resources") or {}
            asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(SHARE_RESOURCE, "0")
            if amount := read_quantity(asked):
                yield str(each.get("name") or ""), amount, kind == "containers" or each.get("restartPolicy") == "Always"
