"""`tranche bundle`: one archive with what a maintainer needs, and nothing private."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.doctor import finding_document, machine_findings
from tranche.cli.options import asked_of_cluster, kubeconfig_option, refuse_kubeconfig_alone
from tranche.cli.output import print_table, say, warn
from tranche.cli.runtime import (
    DriverReader,
    Settings,
    TrancheCommand,
    look_at,
    observe,
    open_driver,
    open_host,
    register_places,
    unsettled,
)
from tranche.cli.version import versions
from tranche.core.errors import TrancheError, UsageError
from tranche.core.layout_format import layouts_to_data
from tranche.core.redaction import SHAPES, log_extract, reduced
from tranche.documents.envelope import document
from tranche.documents.events import event_document
from tranche.documents.machine import gpu_document
from tranche.documents.overview import allocation_document, waiter_documents
from tranche.local.wakeup_pipe import silent
from tranche.node.files.archive import ArchiveFile, write_archive
from tranche.node.health.checkup import Finding
from tranche.node.health.machine_facts import kernel_xids, machine_facts
from tranche.node.look import look
from tranche.node.store import chronicle
from tranche.node.store.ledger import Ledger
from tranche.node.store.ledger_extract import journal_extract, ledger_extract
from tranche.planning.layouts.present_layout import export_layout

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection

LeftOut = dict[str, str]
"""What is missing from a bundle, by the path it would have, and why."""


@click.command(cls=TrancheCommand)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Archive to write. Default: tranche-bundle-DATE-TIME.tar.gz.",
)
@click.option("--list", "only_list", is_flag=True, help="List the files and write no archive.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--cluster", is_flag=True, help="Include the nodes and agents of a Kubernetes cluster.")
@kubeconfig_option
@click.pass_obj
def command(
    settings: Settings, /, output: Path | None, only_list: bool, yes: bool, cluster: bool, kubeconfig: str | None
) -> None:
    """Write an archive for a bug report.

    The archive contains versions, checks, GPUs, shares, the journal, events, layouts and logs. The command lists the
    files and asks for confirmation before writing the archive. The files contain only fields that Tranche knows: no
    environment variables, no secrets and no messages from other programs. They contain program names, but not
    arguments.

    \b
    $ tranche bundle --list
    $ tranche bundle --cluster -o bundle.tar.gz
    """
    refuse_kubeconfig_alone(kubeconfig, cluster)
    if not (only_list or yes or output or sys.stdin.isatty()):
        raise UsageError(
            "cannot ask for confirmation: stdin is not a terminal",
            hint="use --yes, or give a file with -o",
        )
    if output == Path("-"):
        raise UsageError("cannot write an archive to stdout", hint="give a file with -o")
    now = time.time()
    moment = datetime.fromtimestamp(now, UTC)
    left_out: LeftOut = {}
    entries = list(_machine_entries(settings, left_out))
    if cluster:
        entries += _of_cluster(kubeconfig, moment, left_out)
    entries.append(_contents(entries, left_out, moment))
    rows = [(f"{len(each.content):,}", each.path, each.about) for each in entries]
    print_table(
        ("BYTES", "FILE", "WHAT"), [*rows, *(("-", path, f"left out: {why}") for path, why in left_out.items())]
    )
    if only_list:
        return
    name = f"tranche-bundle-{moment:%Y%m%d-%H%M%S}"
    target = output or Path(f"{name}.tar.gz")
    if not (yes or output) or (output and not yes and sys.stdin.isatty()):
        click.confirm(f"Write these to {target}?", abort=True, err=True)
    write_archive(target, name, entries, now=now)
    say(f"wrote {target}, {target.stat().st_size:,} bytes; only you can read it")


def _of_cluster(kubeconfig: str | None, now: datetime, left_out: LeftOut) -> tuple[ArchiveFile, ...]:
    async def ask(connection: ApiConnection, _: str) -> tuple[ArchiveFile, ...]:
        from tranche.kubernetes.support.bundle import cluster_entries

        return await cluster_entries(connection, now=now, own_version=version("tranche-gpu"))

    try:
        return asked_of_cluster(kubeconfig, ask)
    except UsageError:
        raise
    except TrancheError as error:
        warn(f"{error.message}; the bundle contains nothing from the cluster")
        left_out["cluster/"] = error.reason
        return ()


def _contents(entries: list[ArchiveFile], left_out: LeftOut, now: datetime) -> ArchiveFile:
    listed = document(
        "Bundle",
        created=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        files=[each.document() for each in entries],
        leftOut=[{"path": path, "why": why} for path, why in left_out.items()],
    )
    return ArchiveFile("contents.json", "this list, with checksums", (json.dumps(listed, indent=1) + "\n").encode())


_EVENTS = 10_000
_LOGS = Path("/var/log/pods")
_LOG_BYTES = 4 << 20


def _machine_entries(settings: Settings, left_out: LeftOut) -> Iterator[ArchiveFile]:
    """Everything of this machine; missing entries are noted in `left_out`.

    The ledger comes first, because later looks at the machine clear what dead processes left there.
    """

    answers = DriverReader()

    def entry(path: str, about: str, make: Callable[[], bytes]) -> Iterator[ArchiveFile]:
        try:
            yield ArchiveFile(path, about, make())
        except TrancheError as error:
            left_out[path] = error.reason
        except OSError as error:
            left_out[path] = error.strerror or type(error).__name__
        except Exception as error:  # the broken part is what a maintainer looks into: the rest is still in the bundle
            left_out[path] = type(error).__name__

    def ledger() -> bytes:
        path = register_places(settings, reading=True).ledger
        if not path.is_file():
            raise FileNotFoundError(2, "there is no ledger yet")
        return ledger_extract(path)

    for found in entry("ledger.db", "shares, queue, plans and events, as an SQLite file", ledger):
        yield found
        about = "plans with their steps, and what each step found"
        yield from entry("journal.json", about, partial(_journal, found.content))
    yield from entry(
        "version.json", "versions of Tranche, Python, driver and NVML", lambda: _version(settings, answers)
    )
    yield from entry("doctor.json", "which checks passed", lambda: _checkup(machine_findings(settings, answers)))
    yield from entry("gpus.json", "GPUs, slices and their holders", lambda: answers.to(lambda: _gpus(settings)))
    yield from entry("ps.json", "allocations and waiting requests", lambda: answers.to(lambda: _shares(settings)))
    yield from entry("events.json", "what happened, by kind", lambda: _events(settings))
    yield from entry("layout.json", "the current slices, as a layout", lambda: answers.to(lambda: _layout(settings)))
    yield from entry("machine.json", "kernel, distribution, driver modules", lambda: _as_json(machine_facts()))
    yield from entry("xids.json", "XIDs in the kernel's log", lambda: _as_json(kernel_xids()))
    for log in sorted(_LOGS.glob("*tranche*/*/*.log")):
        name = "-".join(log.parts[-3:])
        yield from entry(f"logs/{name}", "the agent's log", lambda log=log: _log(log))  # type: ignore[misc]


def _as_json(data: Any) -> bytes:
    """Data as the content of a JSON file."""
    return (json.dumps(data, indent=1) + "\n").encode()


def _reduced_document(kind: str, **data: Any) -> bytes:
    """A document as its command prints it, without what may not leave the machine."""
    return _as_json(reduced(document(kind, **data), SHAPES[kind]))


def _journal(extract: bytes) -> bytes:
    return _as_json(journal_extract(extract))


def _version(settings: Settings, answers: DriverReader) -> bytes:
    return _reduced_document("Version", **versions(lambda: answers.to(lambda: observe(settings))))


def _checkup(found: Sequence[Finding]) -> bytes:
    return _reduced_document("Checkup", findings=[finding_document(each) for each in found])


def _gpus(settings: Settings) -> bytes:
    with open_driver(settings) as driver:
        view = look(driver, register_places(settings, reading=True), unsettled)
    versions = {"driverVersion": view.node.driver_version, "nvmlVersion": view.node.nvml_version}
    return _reduced_document("GpuList", **versions, gpus=[gpu_document(view, gpu) for gpu in view.node])


def _shares(settings: Settings) -> bytes:
    with open_host(settings, reading=True) as host:
        view, queue = look_at(host), host.waiters()
        away = silent(host.places, queue, time.time())
    allocations = [allocation_document(each, view) for each in view.allocations]
    return _reduced_document("AllocationList", allocations=allocations, waiters=waiter_documents(view, queue, away))


def _events(settings: Settings) -> bytes:
    places = register_places(settings, reading=True)
    with closing(Ledger(places.ledger, read_only=True)) as ledger, ledger.read() as db:
        found = chronicle.events(db, last=_EVENTS)
    return _reduced_document("EventList", events=[event_document(event) for event in found])


def _layout(settings: Settings) -> bytes:
    return _as_json(layouts_to_data(export_layout(observe(settings), "current")))


def _log(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        text = file.read().decode(errors="replace")
    return log_extract(text.splitlines()).encode()
