"""The parts of pods that choosing a node needs, decoded from API objects. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tranche.core.request import Request
from tranche.kubernetes.api.decoding import Json, claimed_resources
from tranche.kubernetes.api.node_rules import NodeTerm, Requirement, Toleration, decode_terms
from tranche.kubernetes.claims.annotations import gate_demand
from tranche.kubernetes.claims.quantity import resource_amounts
from tranche.kubernetes.claims.vocabulary import JOB_LABEL, SHARE_GATE, SHARE_RESOURCE

HOST_LABEL = "kubernetes.io/hostname"
_PODS = "pods"


@dataclass(frozen=True, slots=True)
class SpreadRequirement:
    """At most `skew` more pods that meet all of `selector` in one domain of the node label `key` than in the emptiest."""

    key: str
    skew: int
    selector: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """A pod. `needs` are amounts by resource, CPU in thousandths.

    `request` is the share to choose, if the pod waits only at our gate. Only then it has what decides about its node:
    `node_selector`, `terms` of the required node affinity, one of which must hold (None without any), `tolerations`, `spread`,
    `priority`, and `created`, which sorts by time.

    `node` is where it is bound, `pinned` the host that its selector names. `wrong` says why a pod at the gate cannot be placed.
    `never` says why any node would refuse every choice for it, even after it left the gate. `raw` is what a patch of it must
    know. `job` is the uid of the Job that recreates it, for jobs of ours.
    """

    namespace: str
    name: str
    uid: str
    request: Request | None = None
    needs: Mapping[str, int] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    priority: int = 0
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    spread: tuple[SpreadRequirement, ...] = ()
    node: str = ""
    pinned: str = ""
    finished: bool = False
    ending: bool = False
    asks: bool = False
    waits: bool = False
    wrong: str = ""
    never: str = ""
    raw: Json = field(default_factory=dict)
    job: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def decode_cluster_pod(raw: Json) -> ClusterPod:
    """A `v1.Pod`."""
    meta, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    gates = [str(each.get("name")) for each in spec.get("schedulingGates") or ()]
    needs = dict(pod_needs(spec, claimed_resources(raw)))
    waits = SHARE_GATE in gates
    demand = gate_demand(meta.get("annotations") or {}, spec)
    ours = gates == [SHARE_GATE]
    kept: Json = {}
    if waits:
        kept = {
            "metadata": {"uid": meta.get("uid"), "annotations": meta.get("annotations") or {}},
            "spec": {"schedulingGates": spec.get("schedulingGates"), "nodeSelector": spec.get("nodeSelector") or {}},
        }
    owner: Json = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), {})
    of_job = JOB_LABEL in (meta.get("labels") or {}) and owner.get("kind") == "Job"
    pod = ClusterPod(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        uid=str(meta.get("uid") or ""),
        node=str(spec.get("nodeName") or ""),
        pinned=str((spec.get("nodeSelector") or {}).get(HOST_LABEL) or ""),
        finished=(raw.get("status") or {}).get("phase") in ("Succeeded", "Failed"),
        ending=meta.get("deletionTimestamp") is not None,
        needs=needs,
        labels=meta.get("labels") or {},
        asks=needs.get(SHARE_RESOURCE, 0) > 0,
        waits=waits,
        wrong=demand.wrong if ours else "",
        never=demand.never,
        raw=kept,
        job=str(owner.get("uid") or "") if of_job else "",
    )
    if not ours or demand.request is None or demand.wrong:
        return pod
    return replace(
        pod,
        request=demand.request,
        node_selector=spec.get("nodeSelector") or {},
        terms=decode_terms(spec),
        tolerations=tuple(map(Toleration.decode, spec.get("tolerations") or ())),
        priority=int(spec.get("priority") or 0),
        created=str(meta.get("creationTimestamp") or ""),
        spread=tuple(_spread(meta, spec)),
    )


def pod_needs(spec: Json, claimed: Collection[tuple[str, str]] = ()) -> Iterator[tuple[str, int]]:
    """What a pod takes of a node's resources: the sum of its containers' requests, or the largest init container's.

    A claim serves the `claimed` pairs (container, resource), so the node does not count them.
    """
    inits = spec.get("initContainers") or ()
    beside = [each for each in inits if each.get("restartPolicy") == "Always"]
    together = _sum(_requests(each, claimed) for each in (*(spec.get("containers") or ()), *beside))
    first = [_requests(each, claimed) for each in inits if each not in beside]
    overhead = dict(resource_amounts(spec.get("overhead") or {}))
    names = {*together, *overhead, *(name for each in first for name in each)}
    yield _PODS, 1
    for name in sorted(names):
        most = max([together.get(name, 0), *(each.get(name, 0) for each in first)])
        yield name, most + overhead.get(name, 0)


def _requests(container: Json, claimed: Collection[tuple[str, str]]) -> dict[str, int]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount for name, amount in resource_amounts(asked) if (container.get("name"), name) not in claimed}


def _sum(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in many:
        for name, amount in each.items():
            found[name] = found.get(name, 0) + amount
    return found


def _spread(meta: Json, spec: Json) -> Iterator[SpreadRequirement]:
    for each in spec.get("topologySpreadConstraints") or ():
        if each.get("whenUnsatisfiable") != "DoNotSchedule":
            continue
        selector = each.get("labelSelector") or {}
        labels = meta.get("labels") or {}
        equal = {**(selector.get("matchLabels") or {})}
        equal |= {key: labels[key] for key in each.get("matchLabelKeys") or () if key in labels}
        requirements = [Requirement(str(key), "In", (str(value),)) for key, value in equal.items()]
        requirements += map(Requirement.decode, selector.get("matchExpressions") or ())
        yield SpreadRequirement(str(each.get("topologyKey")), int(each.get("maxSkew") or 1), tuple(requirements))
