"""`tranche submit`: a job on a Kubernetes cluster, in the smallest share that fits."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.options import asked_as_person, target_options
from tranche.cli.output import hint, say, warn
from tranche.cli.request_options import request_options
from tranche.cli.runtime import TrancheCommand
from tranche.core.errors import UsageError
from tranche.core.quantity import MIB, format_memory
from tranche.core.request import Request, parse_request

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.claims.spec import ClaimSpec
    from tranche.kubernetes.jobs.manifest import JobRequest

# Letters and digits that are hard to confuse, as in the names of pods.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@click.command(cls=TrancheCommand)
@request_options
@click.option("--name", metavar="NAME", help="Job name. Default: a name derived from the command.")
@click.option("--image", metavar="IMAGE", envvar="TRANCHE_IMAGE", help="Container image. Default: $TRANCHE_IMAGE.")
@target_options
@click.option(
    "--node-selector", metavar="LABEL=VALUE", multiple=True, help="Use only nodes with this label; repeatable."
)
@click.option(
    "--env",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set an environment variable; without =VALUE, copy your value; repeatable.",
)
@click.option(
    "--volume",
    metavar="SOURCE:PATH[:ro]",
    multiple=True,
    help="Mount SOURCE at PATH. SOURCE is a persistent volume claim or, if it begins with /, a folder on the node; repeatable.",
)
@click.option(
    "--workdir",
    metavar="PATH",
    default="",
    help="Working directory for the command. Default: the image's working directory.",
)
@click.option("--interactive", is_flag=True, help="Allocate a terminal and keep stdin open, for tranche job attach.")
@click.option(
    "--parallelism",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of pods that run at once.",
)
@click.option(
    "--completions",
    metavar="N",
    type=click.IntRange(1),
    help="Total number of pods; each gets an index. Default: the value of --parallelism.",
)
@click.option("--queue", metavar="NAME", help="Kueue's LocalQueue, which starts the job when its quota has room.")
@click.option("--priority", metavar="NAME", help="Kueue's WorkloadPriorityClass for the job; needs --queue.")
@click.option("--dry-run", is_flag=True, help="Print the objects and create nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["name", "yaml", "json"]),
    help="Output: the job's name, or its objects as YAML or JSON. Default: name, or yaml with --dry-run.",
)
@click.argument("command_line", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    name: str | None,
    image: str | None,
    namespace: str | None,
    kubeconfig: str | None,
    node_selector: tuple[str, ...],
    env: tuple[str, ...],
    volume: tuple[str, ...],
    workdir: str,
    interactive: bool,
    parallelism: int,
    completions: int | None,
    queue: str | None,
    priority: str | None,
    dry_run: bool,
    output: str | None,
    command_line: tuple[str, ...],
    **request: Any,
) -> None:
    """Run a command as a job on a Kubernetes cluster.

    Each of the job's pods gets the smallest share that fits. The command creates a Job and a ResourceClaimTemplate. On
    a cluster without claims, it creates only a Job, and the pods wait at a scheduling gate for a share. With --dry-run,
    the command only prints these objects, for kubectl apply.

    A failed command does not run again. If a node is drained or fails, Kubernetes replaces its pods.

    \b
    $ tranche submit --gpu-memory 4Gi --image registry/train:1 -- python train.py
    $ tranche submit --gpu 0.2 --image registry/train:1 --completions 10 --parallelism 5 -- python train.py
    """
    asked = parse_request(**request)
    if not image:
        raise UsageError("a job needs an image", hint="choose one with --image, or set TRANCHE_IMAGE")
    from tranche.kubernetes.jobs.manifest import (
        JobRequest,
        checked_name,
        checked_queue,
        checked_texts,
        name_from,
        parse_environment,
        parse_pairs,
        parse_volume,
    )

    if priority is not None and queue is None:
        raise UsageError("--priority needs --queue", hint="give Kueue's LocalQueue with --queue")
    suffix = "".join(secrets.choice(_LETTERS) for _ in range(5))
    wish = JobRequest(
        name=checked_name(name) if name is not None else name_from(command_line, suffix),
        namespace="",
        request=asked,
        image=image,
        command=command_line,
        node_selector=parse_pairs(node_selector, "--node-selector"),
        environment=parse_environment(env, os.environ),
        volumes=tuple(map(parse_volume, volume)),
        workdir=workdir,
        interactive=interactive,
        parallelism=parallelism,
        completions=completions or parallelism,
        queue="" if queue is None else checked_queue(queue, "--queue"),
        priority="" if priority is None else checked_queue(priority, "--priority"),
    )
    checked_texts(wish)
    output = output or ("yaml" if dry_run else "name")
    asked_as_person(kubeconfig, namespace, lambda api, where: _submit(api, where, wish, dry_run, output))


async def _submit(api: ApiConnection, namespace: str, wish: JobRequest, dry_run: bool, output: str) -> None:
    from dataclasses import replace

    from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS
    from tranche.kubernetes.claims.spec import claim_spec, needs_cards, refuse_alternatives
    from tranche.kubernetes.jobs.client import JobClient
    from tranche.kubernetes.jobs.manifest import gated_job, objects_of
    from tranche.kubernetes.jobs.offers import check_class, check_priority, check_queue, offered_cards, share_backend

    wish = replace(wish, namespace=namespace)
    claim_spec(wish.request) if not needs_cards(wish.request) else None  # the impossible needs no cluster
    client = JobClient(api)
    template: dict[str, Any] | None = None
    if await share_backend(api) in BY_CLAIMS:
        cards = await offered_cards(api, wish.request) if needs_cards(wish.request) else ()
        spec = claim_spec(wish.request, cards)
        await check_class(api, wish.request, spec)
        if wish.queue:
            refuse_alternatives(wish.request, spec.devices)
        _say_left_out(wish.request, spec)
        template, job = objects_of(wish, spec)
    else:
        job = gated_job(wish)
    if wish.queue:
        await check_queue(api, namespace, wish.queue)
    if wish.priority:
        await check_priority(api, wish.priority)
    if not dry_run:
        created = await client.create(template, job)
        say(f"submitted {created}: {wish.request}")
        follow = f"attach {wish.name}" if wish.interactive else f"logs -f {wish.name}"
        hint(f"tranche job {follow} -n {namespace}; see why it waits: tranche job describe {wish.name} -n {namespace}")
    _print([each for each in (template, job) if each is not None], output)


def _say_left_out(request: Request, spec: ClaimSpec) -> None:
    if left_out := [each for each in spec.left_out if each.gpus]:
        sizes = ", ".join(f"{format_memory(each.memory * MIB)} ({each.gpus} GPUs)" for each in left_out)
        warn(f"the claim for {request} leaves out GPUs of {sizes}: a claim can list at most eight alternatives")
        hint("choose the GPUs with --gpu-model, or an amount with --gpu-memory")


def _print(objects: list[dict[str, Any]], output: str) -> None:
    if output == "name":
        click.echo(objects[-1]["metadata"]["name"])
    elif output == "json":
        import json

        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        import yaml

        click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=120), nl=False)
