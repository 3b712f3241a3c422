"""What a user wants to run, checked before any request to a cluster, and the Kubernetes objects that it makes. Pure.

Those are the template of the job's claim, and the Job; without claims the Job alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tranche.core.errors import UsageError
from tranche.core.request import Request
from tranche.kubernetes.claims.annotations import annotations_of
from tranche.kubernetes.claims.spec import REQUEST_NAME, ClaimSpec
from tranche.kubernetes.claims.vocabulary import JOB_LABEL, QUEUE_LABEL, SHARE_GATE, SHARE_RESOURCE

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
"""The label with the Job's WorkloadPriorityClass."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_LONGEST_NAME = 52  # a pod's name adds the job's index and a random part


@dataclass(frozen=True, slots=True)
class JobMount:
    """Something that a job's container sees at `path`: `source` is a persistent volume claim, or a folder of the node."""

    source: str
    path: str
    read_only: bool = False

    @property
    def of_node(self) -> bool:
        """Whether the source is a folder of the node rather than a claim."""
        return self.source.startswith("/")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job to create: its request and what runs in the share. An empty `command` means the image's own.

    `queue` is the LocalQueue of Kueue that shall admit it, and `priority` its WorkloadPriorityClass there.
    """

    name: str
    namespace: str
    request: Request
    image: str
    command: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[JobMount, ...] = ()
    workdir: str = ""
    interactive: bool = False
    parallelism: int = 1
    completions: int = 1
    queue: str = ""
    priority: str = ""


def checked_texts(wish: JobRequest) -> JobRequest:
    """The wish, if a Kubernetes object can hold all of its texts; UsageError otherwise."""
    volumes = [each.source for each in wish.volumes] + [each.path for each in wish.volumes]
    texts = {
        "the command": wish.command,
        "--image": (wish.image,),
        "--workdir": (wish.workdir,),
        "--volume": volumes,
        "--node-selector": (*wish.node_selector, *wish.node_selector.values()),
        **{f"--env {name}": (value,) for name, value in wish.environment.items()},
    }
    for what, values in texts.items():
        for value in values:
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise UsageError(
                    f"{what} is not UTF-8: {value.encode(errors='surrogateescape')!r}",
                    hint="Kubernetes objects contain only text; put the bytes in a file, or encode them",
                ) from error
    return wish


def checked_name(name: str) -> str:
    """The name, if the job's objects can have it; UsageError otherwise."""
    if _NAME.fullmatch(name) is None or len(name) > _LONGEST_NAME:
        raise UsageError(
            f"'{name}' is not a valid job name",
            hint=f"use at most {_LONGEST_NAME} lowercase letters, digits and '-', and begin and end with a letter or digit",
        )
    return name


def checked_queue(text: str, option: str) -> str:
    """The name, if a label can have it as its value; UsageError otherwise."""
    if _LABEL_VALUE.fullmatch(text) is None:
        raise UsageError(
            f"{option} {text!r} is not a valid name",
            hint="use at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
        )
    return text


def name_from(command: Iterable[str], suffix: str) -> str:
    """A name for a job that was given none: the program or script that it runs, and the suffix."""
    words = [word.rsplit("/", 1)[-1] for word in command if not word.startswith("-")]
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    word = re.sub(r"[^a-z0-9]+", "-", (scripts or words or ["job"])[0].rpartition(".")[0].lower() or "")
    word = word or re.sub(r"[^a-z0-9]+", "-", (words or ["job"])[0].lower())
    return f"{word.strip('-')[:40].strip('-') or 'job'}-{suffix}"


def parse_pairs(texts: Iterable[str], option: str) -> Mapping[str, str]:
    """`NAME=VALUE` each; UsageError for anything else, or a repeated name."""
    found: dict[str, str] = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not given or not name:
            raise UsageError(f"{option} {text} has no value", hint=f"write it as {option} NAME=VALUE")
        if name in found:
            raise UsageError(f"{option} sets {name} twice", hint="give it once")
        found[name] = value
    return found


def parse_environment(texts: Iterable[str], environ: Mapping[str, str]) -> Mapping[str, str]:
    """`NAME=VALUE` each, or `NAME` for the caller's own value; UsageError for anything else."""
    whole = []
    for text in texts:
        if "=" not in text and text not in environ:
            raise UsageError(
                f"--env {text}: this variable is not set in your environment", hint="write it as --env NAME=VALUE"
            )
        whole.append(text if "=" in text else f"{text}={environ[text]}")
    found = parse_pairs(whole, "--env")
    for name in found:
        if _VARIABLE.fullmatch(name) is None:
            raise UsageError(f"'{name}' is not a valid variable name", hint="write it as --env NAME=VALUE")
    return found


def parse_volume(text: str) -> JobMount:
    """`CLAIM:/path`, `/folder/of/node:/path`, each also with `:ro`; UsageError for anything else."""
    parts = text.split(":")
    wrong = UsageError(
        f"'{text}' is not a volume",
        hint="write it as --volume CLAIM:/path or --volume /folder:/path, with :ro for read-only",
    )
    if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise wrong
    source, path = parts[:2]
    if not path.startswith("/") or not (source.startswith("/") or _NAME.fullmatch(source)):
        raise wrong
    return JobMount(source, path, parts[2:] == ["ro"])


REQUEST_ANNOTATION = "tranche.dev/request"
"""The annotation of a Job that holds the request, as the options that make it."""

CONTAINER = "main"
"""The name of a job's one container."""


def objects_of(wish: JobRequest, claim: ClaimSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ResourceClaimTemplate and the Job."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(wish),
        "spec": {"metadata": {"labels": _labels(wish)}, "spec": {"devices": claim.devices}},
    }
    return template, _job(wish, gated=False)


def gated_job(wish: JobRequest) -> dict[str, Any]:
    """The Job for a cluster without claims: its pods wait at a gate until each has a chosen share."""
    return _job(wish, gated=True)


def _job(wish: JobRequest, *, gated: bool) -> dict[str, Any]:
    meta = _metadata(wish)
    queueing = {QUEUE_LABEL: wish.queue, PRIORITY_LABEL: wish.priority}
    meta["labels"] |= {label: name for label, name in queueing.items() if name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**meta, "annotations": {REQUEST_ANNOTATION: str(wish.request)}},
        "spec": dict(_job_spec(wish, gated=gated)),
    }


def _metadata(wish: JobRequest) -> dict[str, Any]:
    return {"name": wish.name, "namespace": wish.namespace, "labels": _labels(wish)}


def _labels(wish: JobRequest) -> dict[str, str]:
    """A new object each time, so that YAML needs no anchors."""
    return {JOB_LABEL: wish.name}


def _job_spec(wish: JobRequest, *, gated: bool) -> Iterator[tuple[str, Any]]:
    yield "parallelism", wish.parallelism
    yield "completions", wish.completions
    if wish.completions > 1:
        yield "completionMode", "Indexed"
    # The Job does not retry a failed command, but it does replace a pod whose node went away or was drained.
    yield "backoffLimit", 0
    drained = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    yield "podFailurePolicy", {"rules": [drained]}
    asks = {"annotations": annotations_of(wish.request)} if gated else {}
    yield "template", {"metadata": {"labels": _labels(wish), **asks}, "spec": dict(_pod_spec(wish, gated=gated))}


def _pod_spec(wish: JobRequest, *, gated: bool) -> Iterator[tuple[str, Any]]:
    yield "restartPolicy", "Never"
    if wish.node_selector:
        yield "nodeSelector", dict(wish.node_selector)
    # What the API server adds to pods that ask for nvidia.com/gpu, where nodes are reserved for such pods.
    yield "tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    if gated:
        yield "schedulingGates", [{"name": SHARE_GATE}]
        resources: dict[str, Any] = {"limits": {SHARE_RESOURCE: "1"}}
    else:
        yield "resourceClaims", [{"name": REQUEST_NAME, "resourceClaimTemplateName": wish.name}]
        resources = {"claims": [{"name": REQUEST_NAME}]}
    yield "containers", [dict(_container(wish, resources))]
    if wish.volumes:
        yield (
            "volumes",
            [
                {"name": f"volume-{number}"}
                | (
                    {"hostPath": {"path": each.source}}
                    if each.of_node
                    else {"persistentVolumeClaim": {"claimName": each.source}}
                )
                for number, each in enumerate(wish.volumes)
            ],
        )


def _container(wish: JobRequest, resources: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "name", CONTAINER
    yield "image", wish.image
    if wish.command:
        yield "command", [_escaped(word) for word in wish.command]
    if wish.workdir:
        yield "workingDir", wish.workdir
    if wish.environment:
        yield "env", [{"name": name, "value": _escaped(value)} for name, value in wish.environment.items()]
    if wish.interactive:
        yield from (("stdin", True), ("tty", True))
    yield "resources", resources
    if wish.volumes:
        yield (
            "volumeMounts",
            [
                {"name": f"volume-{number}", "mountPath": each.path} | ({"readOnly": True} if each.read_only else {})
                for number, each in enumerate(wish.volumes)
            ],
        )


def _escaped(text: str) -> str:
    """Kubernetes expands $(NAME) in commands and variables, and $$ to $; the user's shell has already expanded what was meant."""
    return re.sub(r"\$(?=[$(])", r"$$", text)
