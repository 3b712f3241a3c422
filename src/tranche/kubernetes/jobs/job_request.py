"""What a user wants to run: image, command and surroundings of a job, checked before any request to a cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tranche.core.errors import UsageError
from tranche.core.request import Request

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
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
    """A job to create: its request and what runs in the share. An empty `command` means the image's own."""

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
                    f"{what} is not UTF-8: {os.fsencode(value)!r}",
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
