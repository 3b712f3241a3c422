"""What somebody waits for until a share is chosen: by commands on one machine, among the nodes of a cluster, and in a replay."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from bench.commands import TRANCHE, environment_of, milliseconds, tranche
from bench.machine import BOARD, ProductPath, Spot
from bench.report import Report, figure
from tranche.core.allocation import NodeView
from tranche.core.request import Request, parse_request
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod
from tranche.kubernetes.gated.scheduler.placer import GpuNode, place
from tranche.planning.decide.allocate import decide
from tranche.planning.decide.queue import WaitingRequest
from tranche.planning.decide.recording import (
    RecordedDecision,
    RecordedRequest,
    answer,
    decision_from_dict,
    decision_to_dict,
)
from tranche.planning.explain.explanation import explain

SEED = 7
MACHINES = (1, 8, 16)
NODES = (10, 100, 1_000)
GPUS_OF_A_NODE = 8
HELD = 5
_KINDS_OF_NODES = 5
_COMMANDS = 9
_REPETITIONS = 51
_STARTS = parse_request(mig_profile="1g.5gb")
_WAITS = parse_request(mig_profile="7g.40gb")
# Of 1g, 1g with double memory, 2g: what the machines hold.
_HELD_WEIGHTS = (70, 10, 20, 0, 0, 0)


def run(report: Report) -> None:
    _commands(report)
    _decisions(report)
    _nodes(report)
    _replay(report)


def _commands(report: Report) -> None:
    report.section(
        "What a person waits for, in ms of a new process: wall time / processor time",
        f"A simulated machine of {BOARD} with MIG mode on, whose operations take no time; medians of {_COMMANDS} runs.",
        "Each run of `tranche run` gets the idle slice of the last one, starts `true`, and gives the slice back.",
    )
    commands = {
        "tranche run": ("run", "-q", "--mig-profile", "1g.5gb", "--", "true"),
        "explain, it would start": ("explain", "--mig-profile", "1g.5gb"),
        "explain, it would wait": ("explain", "--gpus", "{all}"),
    }
    empty = (sys.executable, "-c", "import click")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(Path(folder), TRANCHE_SIM_TIME_SCALE="0")
        for gpus in MACHINES:
            name = f"with-{gpus}"
            tranche(environment, "sim", "create", name, *("--gpu", BOARD) * gpus, "--time-scale", "0")
            tranche(environment, "--simulate", name, "layout", "apply", "-c", "all-enabled")
            row = [str(gpus)]
            for words in commands.values():
                command = (*TRANCHE, "--simulate", name, *(word.format(all=gpus) for word in words))
                row.append(_spent(command, environment))
            rows.append([*row, _spent(empty, environment)])
    report.table(["GPUs", *commands, "python -c 'import click'"], rows)


def _decisions(report: Report) -> None:
    report.section(
        "The decision within them, in ms of CPU time",
        f"{BOARD}, {HELD} slices held on each GPU, seed {SEED}; medians of {_REPETITIONS}, from what was observed to the answer.",
    )
    rows = []
    for gpus in MACHINES:
        view = filled(gpus, SEED)
        found = [_processor_time(partial(decide, view, asked)) for asked in (_STARTS, _WAITS)]
        found += [_processor_time(partial(explain, view, asked)) for asked in (_STARTS, _WAITS)]
        rows.append([str(gpus), *map(figure, found)])
    report.table(["GPUs", "decide, starts", "decide, waits", "explain, starts", "explain, waits"], rows)


def _nodes(report: Report) -> None:
    report.section(
        "The choice of node and share for a gated pod, in ms of CPU time",
        f"Nodes with {GPUS_OF_A_NODE} GPUs as above, {_KINDS_OF_NODES} different ones in turn; medians of 5.",
    )
    lines = _recordings()
    rows = []
    for count in NODES:
        nodes = [
            GpuNode(FleetNode(f"node-{number:04}"), _moved(lines[number % len(lines)], number))
            for number in range(count)
        ]
        found = [_processor_time(partial(place, [_pod(asked)], nodes), 5) for asked in (_STARTS, _WAITS)]
        rows.append([f"{count:,}", *map(figure, found)])
    report.table(["nodes", "has room", "has to wait"], rows)


def _replay(report: Report) -> None:
    decisions = 100_000 if report.long else 500
    report.section(
        "A replay of recorded requests, in seconds of CPU time",
        f"{decisions:,} decisions of a machine with {GPUS_OF_A_NODE} GPUs as above, read from their JSON and made again.",
    )
    lines = _recordings()
    began = time.process_time()
    same = 0
    for number in range(decisions):
        recorded = decision_from_dict(json.loads(lines[number % len(lines)]))
        same += answer(recorded.question) == recorded.outcome
    spent = time.process_time() - began
    report.table(
        ["decisions", "seconds", "of 100,000"], [[f"{decisions:,}", figure(spent), figure(spent / decisions * 1e5)]]
    )
    report.verdict("all are made again as they were", same == decisions)


def filled(gpus: int, seed: int) -> NodeView:
    """A machine on which slices came and went until so many are held."""
    random, product = Random(seed), ProductPath(gpus)
    live: list[Spot] = []
    while len(live) < HELD * gpus:
        spot = product.place(random.choices(range(len(_HELD_WEIGHTS)), _HELD_WEIGHTS)[0])
        if spot is not None:
            live.append(spot)
        if spot is None or random.random() < 0.1:
            product.release(live.pop(random.randrange(len(live))))
    return product.view


def _recordings() -> list[str]:
    """Machines, each with somebody who waits."""
    views = [filled(GPUS_OF_A_NODE, SEED + number) for number in range(_KINDS_OF_NODES)]
    questions = [RecordedRequest(view, (WaitingRequest("w-1", _STARTS),), "w-1") for view in views]
    return [json.dumps(decision_to_dict(RecordedDecision(0.0, each, answer(each)))) for each in questions]


def _moved(line: str, number: int) -> NodeView:
    """The machine as one of many: its GPUs have names of their own."""
    question = decision_from_dict(json.loads(line.replace('"GPU-', f'"GPU-{number}-'))).question
    assert isinstance(question, RecordedRequest)
    return question.view


def _pod(request: Request) -> ClusterPod:
    return ClusterPod("default", "train", "uid-train", request)


def _spent(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Wall time and processor time of a new process; the first run only warms the file cache."""
    times = [milliseconds(command, environment) for _ in range(_COMMANDS + 1)][1:]
    return " / ".join(f"{median(each):.0f}" for each in zip(*times, strict=True))


def _processor_time(work: Callable[[], object], repetitions: int = _REPETITIONS) -> float:
    times = []
    for _ in range(repetitions):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return median(times)
