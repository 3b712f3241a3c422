"""`tranche bundle`: one archive with what a maintainer needs, and nothing that is nobody else's business."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tranche.cli.bundle_machine import LeftOut, machine_entries
from tranche.cli.cluster_checkup import asked_of_cluster
from tranche.cli.doctor import machine_findings
from tranche.cli.kubeconfig_option import kubeconfig_option
from tranche.cli.output import print_table, say, warn
from tranche.cli.runtime import Settings, TrancheCommand
from tranche.core.errors import TrancheError, UsageError
from tranche.documents.envelope import document
from tranche.node.files.archive import ArchiveFile, write_archive
from tranche.node.health.software import software

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection


@click.command(cls=TrancheCommand)
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="The archive, a .tar.gz.")
@click.option("--list", "only_list", is_flag=True, help="Only list what would be in it.")
@click.option("--yes", is_flag=True, help="Write it without asking.")
@click.option("--cluster", is_flag=True, help="Add what a Kubernetes cluster says of all nodes and agents.")
@kubeconfig_option
@click.pass_obj
def command(
    settings: Settings, /, output: Path | None, only_list: bool, yes: bool, cluster: bool, kubeconfig: str | None
) -> None:
    """Write one archive for whoever looks into a fault: versions, checkups, GPUs, shares, journal, events, layouts, logs.

    bundle lists the content and asks before it writes. It keeps the fields that it knows, and nothing else: no environment,
    no secret, no message of another program, and of a command line the program's name only.

    \b
    $ tranche bundle --list
    $ tranche bundle --cluster -o bundle.tar.gz
    """
    if kubeconfig is not None and not cluster:
        raise UsageError("--kubeconfig is for --cluster", hint="add --cluster")
    if not (only_list or yes or output or sys.stdin.isatty()):
        raise UsageError("nobody can be asked here whether to write the archive", hint="add --yes, or name it with -o")
    if output == Path("-"):
        raise UsageError("an archive goes into a file, not to stdout", hint="name a file with -o")
    now = time.time()
    moment = datetime.fromtimestamp(now, UTC)
    left_out: LeftOut = {}
    entries = list(machine_entries(settings, machine_findings, left_out))
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
    async def ask(connection: ApiConnection) -> tuple[ArchiveFile, ...]:
        from tranche.kubernetes.support.bundle import cluster_entries

        return await cluster_entries(connection, now=now, own_version=software().version)

    try:
        return asked_of_cluster(kubeconfig, ask)
    except UsageError:
        raise
    except TrancheError as error:
        warn(f"{error.message}; nothing of the cluster is in the bundle")
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
