"""`tranche replay`: recorded decisions, made again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BufferedReader
from typing import IO

import click

from tranche.cli.output import print_json, print_table
from tranche.cli.runtime import TrancheCommand, output_option
from tranche.core.errors import DecisionChanged, UsageError
from tranche.documents import describe
from tranche.node.files.files import STANDARD_STREAM, BoundedStream
from tranche.planning.decide.allocate import Granted
from tranche.planning.decide.recording import Impossible, Outcome, RecordedDecision, answer, decision_from_dict

_LONGEST_LINE = 2**26  # 64 MiB: the machines of a whole rack


@click.command(cls=TrancheCommand)
@click.argument("file")
@output_option()
def command(file: str, output: str) -> None:
    """Replay recorded decisions.

    The command repeats the decisions in FILE with this version's planner and compares the results. It uses the recorded
    state and needs no GPU. FILE comes from `tranche run --record FILE`; use - for stdin.

    \b
    $ tranche run --gpu-memory 4Gi --record decisions.jsonl -- python train.py
    $ tranche replay decisions.jsonl
    """
    replayed = [_replay(decision) for decision in _decisions(file)]
    if output == "json":
        print_json("Replay", decisions=replayed)
    else:
        rows = [
            (each["time"], each["request"], each["recorded"], "the same" if each["same"] else each["now"])
            for each in replayed
        ]
        print_table(("TIME", "REQUEST", "DECIDED", "NOW"), rows)
    if changed := sum(not each["same"] for each in replayed):
        raise DecisionChanged(
            f"{changed} of {len(replayed)} decisions would be different now",
            hint="another version of Tranche recorded them, or the record was changed",
        )


def _replay(decision: RecordedDecision) -> dict[str, str | bool]:
    now = answer(decision.question)
    return {
        "time": describe.timestamp(decision.time),
        "request": str(decision.question.request),
        "recorded": _text(decision.outcome),
        "now": _text(now),
        "same": now == decision.outcome,
    }


def _text(outcome: Outcome) -> str:
    match outcome:
        case Granted():
            return outcome.note
        case Impossible():
            return outcome.message
        case _:
            return f"waits: {'; '.join(outcome.reasons)}"


def _decisions(file: str) -> Iterator[RecordedDecision]:
    try:
        with BufferedReader(BoundedStream(file)) as stream:
            yield from _lines(stream, file)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _lines(stream: IO[bytes], file: str) -> Iterator[RecordedDecision]:
    source = "stdin" if file == STANDARD_STREAM else file
    number = 0
    while line := stream.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise UsageError(f"{source}, line {number} is longer than any recorded decision")
        try:
            yield decision_from_dict(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{source}, line {number} is not a recorded decision") from error
        except UsageError as error:
            raise UsageError(f"{source}, line {number}: {error.message}", hint=error.hint) from error
