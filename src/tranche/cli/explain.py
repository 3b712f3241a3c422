"""`tranche explain`: what a request would meet if it were made now, and what would help."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tranche.cli import completion
from tranche.cli.options import asked_as_person, target_options
from tranche.cli.output import print_json, print_table, show
from tranche.cli.request_options import adopt_foreign_option, preemptible_option, request_options, time_option
from tranche.cli.runtime import (
    Settings,
    TrancheCommand,
    full_id,
    look_at,
    open_host,
    output_option,
    warn_of_hidden_devices,
)
from tranche.core.allocation import NodeView
from tranche.core.errors import AllocationUnknown, UsageError
from tranche.core.quantity import format_memory
from tranche.core.request import Request, parse_request
from tranche.core.state import NodeState
from tranche.documents import describe
from tranche.documents.explanation import (
    explanation_document,
    fairness_document,
    idle_holders,
    reasons,
    status,
    told_idle,
    who_goes_first,
)
from tranche.documents.holder_names import NameTable, names_of
from tranche.documents.reasons import named
from tranche.local.wakeup_pipe import as_asked
from tranche.node.store import records
from tranche.node.store.register import fair_order, process_owners, user_name
from tranche.planning.decide.answers import GpuFit
from tranche.planning.decide.fairness import FairOrder
from tranche.planning.decide.obstacle import Obstacle
from tranche.planning.explain.explanation import Explanation, explain

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.fleet.explanation import FleetExplanation

_PODS = ("pod", "pods", "po")
"""kubectl's words for pods."""
_POD_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)


@click.command(cls=TrancheCommand)
@click.argument("waiter_id", metavar="[ID|NAME|pod/NAME]", default="", shell_complete=completion.waiting_ids)
@request_options
@time_option
@preemptible_option
@adopt_foreign_option
@target_options
@output_option()
@click.pass_obj
def command(
    settings: Settings,
    /,
    waiter_id: str,
    adopt_foreign: str,
    namespace: str | None,
    kubeconfig: str | None,
    output: str,
    **request: Any,
) -> None:
    """Explain why a request is waiting and what would help.

    The answer shows whether the request would start now. If not, it shows the obstacle on each GPU and what would help,
    cheapest first.

    ID names a waiting request, NAME one of your detached runs, and pod/NAME a pod in a Kubernetes cluster. For a pod,
    the answer lists the nodes that cannot run it, with reasons.

    The command neither queues nor executes the request. If you can write to the register, it first finishes or undoes
    changes that a killed command left incomplete, and reports them. It does not do this for a pod. The exit code is 0
    if the request would start or wait. If this machine can never serve the request, the command exits with the error's
    exit code.

    \b
    $ tranche explain --gpu-memory 30Gi
    $ tranche explain --mig-profile 3g.20gb
    $ tranche explain 4f0c2a1b
    $ tranche explain pod/train-x7k2p-0 -n team-a
    """
    if waiter_id and any(value for name, value in request.items() if name != "isolation"):
        raise UsageError("a request and the id of a waiting request cannot be combined", hint="give only one of them")
    kind, of_cluster, name = waiter_id.partition("/")
    if of_cluster:
        _explain_pod(_pod_name(kind, name), namespace, kubeconfig, output)
        return
    if namespace is not None or kubeconfig is not None:
        raise UsageError("--namespace and --kubeconfig apply only to pods", hint="write the pod as pod/NAME")
    asked = None if waiter_id else parse_request(**request)
    with open_host(settings, reading=True) as host:
        view = host.daemons.view_as_said(look_at(host))
        warn_of_hidden_devices(view.node)
        queue = host.waiters()
        names = names_of(view.allocations, queue, process_owners(view.allocations, queue))
        uid = os.getuid()
        if asked is None:
            named = "" if any(each.id == waiter_id for each in queue) else _waiter_of_job(waiter_id, queue)
            waiter_id = full_id(host, named or waiter_id)
            waiter, queue = _waiting(waiter_id, queue)
            asked, uid = waiter.request, waiter.uid
        with host.ledger.read() as db:
            order = fair_order(db, time.time())
            if not waiter_id:
                records.refuse_preemptible(db, asked)
        if not waiter_id:
            place = _place(asked, uid, order)
            queue = tuple(each for each in queue if _place(each.request, each.uid, order) <= place)
        waiters = as_asked(host.places, queue, time.time())
    foreign, now = adopt_foreign == "destroy", time.time()
    answer = explain(replace(view, asker=uid), asked, waiters, adopt_foreign_destroy=foreign, now=now)
    idle = idle_holders(answer, view)
    if output == "json":
        fairness = (
            None if order is None else fairness_document(order, [uid, *(each.uid for each in waiters)], user_name)
        )
        print_json(
            "Explanation",
            **explanation_document(answer, sum(not each.silent for each in waiters), names, fairness),
            idleHolders=[each.id for each in idle],
        )
    else:
        first = [] if order is None else who_goes_first(order, uid, [each.uid for each in waiters], user_name)
        _print(answer, view, names, [*first, *(told_idle(each, view, names) for each in idle)])
    if answer.impossible is not None:
        sys.exit(answer.impossible.exit_code)


def _place(request: Request, uid: int, order: FairOrder | None) -> tuple[object, ...]:
    """Smaller for what is served first; equal for what is served in order of arrival."""
    return request.preemptible, *(() if order is None else order.level(uid))


def _pod_name(kind: str, name: str) -> str:
    if kind.lower() not in _PODS:
        raise UsageError(
            f"cannot explain '{kind}/{name}'",
            hint="write a pod as pod/NAME; for a job, use: tranche job describe NAME",
        )
    if _POD_NAME.fullmatch(name) is None:
        raise UsageError(
            f"'{name}' is not a pod name", hint="write it as pod/NAME; list the pods with: kubectl get pods"
        )
    return name


def _explain_pod(name: str, namespace: str | None, kubeconfig: str | None, output: str) -> None:
    found = asked_as_person(kubeconfig, namespace, lambda api, where: _explained_pod(api, where, name))
    if output == "json":
        from tranche.kubernetes.fleet.explanation import explanation_document as pod_explanation_document

        print_json("PodExplanation", **pod_explanation_document(found))
    else:
        print_explanation(found)


async def _explained_pod(api: ApiConnection, namespace: str, name: str) -> FleetExplanation:
    """Why that pod waits, or what it has."""
    from tranche.kubernetes.fleet.reading import backend_in_force, read_fleet, read_pod
    from tranche.kubernetes.gated.explaining import explain_waiting
    from tranche.kubernetes.gated.reading import read_gate_fleet

    pod, backend = await read_pod(api, namespace, name), await backend_in_force(api)
    fleet = await read_gate_fleet(api, pod) if pod.asks_at_gate else await read_fleet(api, namespace)
    return explain_waiting(pod, fleet, backend)


def print_explanation(found: FleetExplanation) -> None:
    """The answer, the nodes, and what would help."""
    from tranche.kubernetes.fleet.explanation import GROUP_COLUMNS, group_row, head_lines, tail_lines

    for line in head_lines(found):
        show(line)
    if found.groups:
        show()
        print_table(GROUP_COLUMNS, [group_row(each) for each in found.groups])
    for line in tail_lines(found):
        show(line)


def _waiter_of_job(name: str, queue: Sequence[records.Waiter]) -> str:
    """The id under which this user's detached run of that name waits; "" if there is none."""
    from tranche.local.jobs import open_jobs

    store = open_jobs(os.environ)
    job = None if store is None else store.find(name)
    return next((each.id for each in queue if job is not None and job.lives and each.pid == job.pid), "")


def _waiting(waiter_id: str, queue: Sequence[records.Waiter]) -> tuple[records.Waiter, tuple[records.Waiter, ...]]:
    """The request that waits under the id, and those ahead of it."""
    for position, waiter in enumerate(queue):
        if waiter.id == waiter_id:
            return waiter, tuple(queue[:position])
    raise AllocationUnknown(f"no request {waiter_id} is waiting", hint="list the waiting requests with: tranche ps")


def _print(answer: Explanation, view: NodeView, names: NameTable, told: Sequence[str]) -> None:
    node = view.node
    show(f"{status(answer)}: {answer.summary}")
    if answer.granted is not None:
        steps = answer.granted.plan.steps
        for step in steps:
            show(f"  {node.gpu(step.gpu_uuid).label}: {step}")
        for sharing, why in answer.passed_over.items():
            show(f"  not shared by {sharing.for_people}: {why}")
        return
    said = reasons(answer, names)
    if said and said.count("; ") < len(answer.gpus) - 1:
        show(f"  {said}")
    for line in told:
        show(f"  {line}")
    if answer.starts_by is not None:
        also = " and reservations allow it" if view.reservations else ""
        when = f"once other commands have reached their time limits{also}"
        show(f"  it starts by {describe.local_time(answer.starts_by)}, {when}")
    show()
    print_table(("GPU", "REASON", "MISSING", "HELD BY", "WHY"), _gpu_rows(answer.gpus, node, names))
    if answer.answers.unnamed:
        show(f"and {answer.answers.unnamed:,} more GPUs, for other reasons")
    hints = [named(each.text, names) for each in answer.remedies]
    if answer.impossible is not None and answer.impossible.hint:
        hints.append(answer.impossible.hint)
    if hints:
        searched = f" ({answer.advice.looked_at} of the GPUs searched)" if answer.advice.looked_at else ""
        show()
        show(f"what would help, cheapest first{searched}:")
        for number, hint in enumerate(hints, start=1):
            show(f"  {number}. {hint}")


def _gpu_rows(answers: Sequence[GpuFit], node: NodeState, names: NameTable) -> list[tuple[object, ...]]:
    """A row for each answer; GPUs that say the same are in one."""
    together: dict[tuple[object, ...], list[int]] = {}
    for each in answers:
        found, why = each.obstacle, named(each.text, names)
        row = (
            ("Fits", "", "", why)
            if found is None
            else (found.reason, _missing(found), _holders(found, node, names), why)
        )
        together.setdefault(row, []).append(each.gpu.index)
    return [(describe.ranges(indexes), *row) for row, indexes in together.items()]


def _missing(found: Obstacle) -> str:
    if found.missing_slices:
        return f"{found.missing_slices} memory slice{'s' if found.missing_slices > 1 else ''}"
    return format_memory(found.missing_memory) if found.missing_memory else ""


def _holders(found: Obstacle, node: NodeState, names: NameTable) -> str:
    users = [*(names.called.get(id, id) for id in found.allocation_ids), *map(str, found.processes)]
    users += [describe.instance(key, node) for key in found.instances]
    return ", ".join(users)
