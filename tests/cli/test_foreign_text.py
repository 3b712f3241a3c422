"""Other people's text on a terminal: nothing in it is acted on, and none of it makes a line of its own."""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.cli.doctor import print_finding
from tranche.cli.explain import print_explanation
from tranche.cli.job import print_description
from tranche.cli.main import _report
from tranche.cli.output import hint, print_table, say, show, warn
from tranche.core.errors import KubernetesRejected, UsageError
from tranche.core.request import parse_request
from tranche.kubernetes.fleet.explanation import FleetExplanation, NodeGroup, WaitStatus
from tranche.kubernetes.jobs.description import JobSummary
from tranche.kubernetes.jobs.job import JobPod, JobStatus, KubeJob
from tranche.node.health.checkup import Status

CLI = Path(__file__).parents[2] / "src" / "tranche" / "cli"
DATA = {
    "completion.py": 1,
    "detached.py": 2,  # what the person's own command printed
    "events.py": 1,  # JSON
    "gpus.py": 1,  # SVG, whose text is escaped
    "job.py": 1,  # what the person's own command printed
    "main.py": 1,  # JSON
    "metrics.py": 1,  # for Prometheus
    "output.py": 2,  # here everything else comes by
    "sim.py": 2,  # for a shell
    "submit.py": 3,  # the objects, as JSON and YAML escape them, and their checked name
    "top.py": 1,  # coloured lines, clean where they are made
}
"""Where else the command line prints, and how often: data for programs, and what has no foreign text in it."""

hostile = st.text(st.one_of(st.sampled_from("\x1b\n\r\x07\x9b\u202e\u2028a "), st.characters()), min_size=1)


def printed(print_it: Callable[[], None]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        print_it()
    return out.getvalue()


def lines_of(print_it: Callable[[], None]) -> list[str]:
    """The lines that were printed, each of which a terminal only shows."""
    lines = printed(print_it).removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines), lines
    return lines


def test_every_module_of_the_command_line_prints_by_the_one_way_out() -> None:
    found = {str(path.relative_to(CLI)): _prints(path) for path in CLI.rglob("*.py")}
    assert {name: count for name, count in found.items() if count} == DATA


def _prints(path: Path) -> int:
    calls = [each.func for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call)]
    names = [ast.unparse(each) for each in calls]
    return sum(name in ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write") for name in names)


@given(hostile)
def test_one_text_is_one_line_whichever_way_it_leaves(text: str) -> None:
    for leave in (show, say, warn, hint):
        assert len(lines_of(lambda leave=leave: leave(text))) == 1  # type: ignore[misc]
    assert len(lines_of(lambda: print_table(("A", "B"), [(text, text)]))) == 2
    assert len(lines_of(lambda: print_finding(Status.WARN, text, text))) == 2
    assert len(lines_of(lambda: _report(KubernetesRejected(text, hint=text), as_json=False))) == 3


@given(hostile)
def test_an_explanation_has_as_many_lines_as_it_has_answers(text: str) -> None:
    def explanation(said: str) -> FleetExplanation:
        group = NodeGroup(said, said, (said,), 1, 5, (said,))
        words = (said, said)
        return FleetExplanation(
            said, WaitStatus.WAITING, said, words, groups=(group,), unnamed=1, remedies=words, notes=words
        )

    plain = lines_of(lambda: print_explanation(explanation("x")))
    assert len(lines_of(lambda: print_explanation(explanation(text)))) == len(plain)


@given(hostile)
def test_a_description_too(text: str) -> None:
    def description(said: str) -> JobSummary:
        job = KubeJob(said, said, JobStatus.FAILED, said, message=said)
        pods = (JobPod(said, said, said, said, said, waiting=said, message=said),)
        waiting = (FleetExplanation(said, WaitStatus.WAITING, said),)
        return JobSummary(job, pods, {}, waiting, (said,))

    plain = lines_of(lambda: print_description(description("x")))
    assert len(lines_of(lambda: print_description(description(text)))) == len(plain)


@pytest.mark.parametrize("text", ["\x1b[31mx\x1b]0;t\x07", "A100\nspec: x", "A\u202e100"])
def test_no_request_names_a_model_that_a_terminal_would_act_on(text: str) -> None:
    with pytest.raises(UsageError, match="characters that do not occur in the names of GPU models"):
        parse_request(gpus="1", gpu_model=text)
    assert parse_request(gpus="1", gpu_model="A100\n").gpu_model == "A100"
