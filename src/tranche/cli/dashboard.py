"""`tranche dashboard`: the machine as a page in a browser."""

from __future__ import annotations

import platform
from contextlib import closing
from functools import partial

import click

from tranche.cli.options import extra_missing
from tranche.cli.output import say
from tranche.cli.runtime import Settings, TrancheCommand, child_environment, open_host, register_places, user_name
from tranche.cli.service_options import port_option
from tranche.core.keeper import Actor
from tranche.documents.blocks import Document
from tranche.documents.events import event_document
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.store import chronicle
from tranche.node.store.ledger import open_to_read


@click.command(cls=TrancheCommand, params=[port_option("--port", 8899, "Port on 127.0.0.1")])
@click.option(
    "--act",
    is_flag=True,
    help="Let the page release shares, cancel requests, apply layouts and cordon GPUs. Default: read-only.",
)
@click.pass_obj
def command(settings: Settings, /, port: int, act: bool) -> None:
    """Serve a live page for this machine until Ctrl-C.

    The page shows GPUs, slices, shares, the queue and events. The server listens only on 127.0.0.1 and requires the
    token in the printed address. It keeps the token in a file that only you can read. With --act, it uses a second
    token; anyone who has this token can act with your permissions. Before each action, the page shows the plan.

    To open the page from another machine, use a tunnel: ssh -L 8899:127.0.0.1:8899 MACHINE.
    """
    try:
        from tranche.dashboard.app import MachineContext, serve_dashboard
    except ModuleNotFoundError as error:
        raise extra_missing("'tranche dashboard'", "dashboard", error) from error
    from tranche.dashboard.access import TokenAuthenticator
    from tranche.dashboard.token_file import read_token, token_path
    from tranche.dashboard.watch import UseFile

    token = read_token(token_path(acts=act))
    with open_host(settings, reading=not act):
        pass  # a machine without a driver, or one that may not be changed, is an error of the command, not of a page

    def events(after: int) -> list[Document]:
        with closing(open_to_read(register_places(settings, reading=True))) as ledger, ledger.read() as db:
            return [event_document(each) for each in chronicle.events(db, after=after)]

    def ready(gate: TokenAuthenticator) -> None:
        say(f"tranche: open http://127.0.0.1:{gate.port}/enter?token={token}")

    machine = platform.node() if settings.simulate is None else f"simulated {settings.simulate}"
    places = register_places(settings, reading=True)
    served = MachineContext(
        machine,
        places,
        lambda: open_host(settings, reading=True),
        events,
        MpsDaemonManager(places, child_environment(settings)).view_as_said,
        UseFile(token_path().with_name("gpu-use")),
        partial(open_host, settings, actor=Actor("dashboard", user_name())) if act else None,
    )
    serve_dashboard(port, token, served, ready)
