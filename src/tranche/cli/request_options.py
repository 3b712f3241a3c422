"""The options that make a request, shared by every command that takes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tranche.cli import completion
from tranche.core.request import Request, parse_request

_OPTIONS = (
    click.option("--gpus", metavar="N", help="N whole GPUs."),
    click.option("--gpu", metavar="SHARE", help="A share of one GPU, such as 0.5."),
    click.option("--gpu-memory", metavar="AMOUNT", help="GPU memory, with its unit: 4G, 4Gi or 4000M."),
    click.option(
        "--mig-profile",
        metavar="NAME",
        shell_complete=completion.profiles,
        help="A MIG slice of that profile, such as 2g.10gb or 1g.5gb+me.",
    ),
    click.option("--count", metavar="N", help="So many shares of that kind, each on another GPU."),
    click.option(
        "--compute", metavar="PERCENT", help="A ceiling of compute for a share of a GPU, 1 to 100; by MPS only."
    ),
    click.option(
        "--isolation",
        metavar="hard|soft|none|any",
        default="soft",
        show_default=True,
        help="The least that the fence must be.",
    ),
    click.option("--gpu-model", metavar="TEXT", default="", help="Only GPUs whose product name holds TEXT."),
)

adopt_foreign_option = click.option(
    "--adopt-foreign",
    type=click.Choice(["keep", "destroy"]),
    default="keep",
    show_default=True,
    help="Whether to destroy idle instances that Tranche did not make, for their room.",
)


def request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the request's options to a command; pass its keyword arguments to request_from."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def request_from(
    gpus: str | None,
    gpu: str | None,
    gpu_memory: str | None,
    mig_profile: str | None,
    count: str | None,
    compute: str | None,
    isolation: str,
    gpu_model: str,
) -> Request:
    """The request that the options make; UsageError when they make none."""
    return parse_request(
        gpus=gpus,
        gpu=gpu,
        gpu_memory=gpu_memory,
        mig_profile=mig_profile,
        count=count,
        compute=compute,
        isolation=isolation,
        gpu_model=gpu_model,
    )
