"""`tranche release`: take a share back, or cancel a request that waits."""

from __future__ import annotations

import os
import signal

import click

from tranche.cli import completion
from tranche.cli.options import DurationType
from tranche.cli.output import say, warn
from tranche.cli.runtime import Settings, TrancheCommand, full_id, open_host, register_places
from tranche.local.termination import cancel_waiter, take_back
from tranche.node.processes.processes import MARK


@click.command(cls=TrancheCommand)
@click.argument("allocation_id", metavar="ID", shell_complete=completion.ids)
@click.option(
    "--terminate", is_flag=True, help="Stop the workload with SIGTERM, then with SIGKILL after the grace period."
)
@click.option(
    "--grace",
    type=DurationType(),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Grace period between SIGTERM and SIGKILL, such as 30s or 2m.",
)
@click.pass_obj
def command(settings: Settings, /, allocation_id: str, terminate: bool, grace: float) -> None:
    """Release a share or cancel a waiting request.

    ID is the id of an allocation or of a waiting request; a unique prefix is enough.

    Tranche releases a share when its workload ends. To end the workload now, add --terminate; without it, the command
    fails while the workload is running. A share from tranche hold needs --terminate only while programs are using it.
    After the release, the share's instance remains idle for the next request.
    """
    reading = not register_places(settings, reading=True).writable  # users may end what is theirs
    with open_host(settings, reading=reading, changes_own_share=allocation_id) as host:
        allocation_id = full_id(host, allocation_id)
        pid = cancel_waiter(host, allocation_id)
        if pid is not None:
            say(f"cancelled waiting request {allocation_id} (pid {pid})")
            return
        ended = take_back(host, allocation_id, terminate=terminate, grace=grace)
    for each in ended.undrained:
        warn(
            f"killed the processes before the MPS daemon of {each.device_uuid} released them: {each.why}; "
            "programs that share the device may fail"
        )
    if os.environ.get(MARK) == allocation_id and os.environ.get("CUDA_VISIBLE_DEVICES"):
        warn("this shell still has variables of the released share: unset CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES")
    how = f" after {signal.Signals(ended.signal).name} to pid {', '.join(map(str, ended.pids))}" if ended.signal else ""
    say(f"released {allocation_id}{how}")
