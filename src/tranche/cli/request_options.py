"""The options that make a request, shared by every command that takes one."""

from __future__ import annotations

import click

from tranche.cli import completion
from tranche.cli.options import together

request_options = together(
    click.option("--gpus", metavar="N", help="Number of whole GPUs."),
    click.option("--gpu", metavar="SHARE", help="Fraction of one GPU, such as 0.5."),
    click.option(
        "--gpu-memory", metavar="AMOUNT", help="Amount of GPU memory with its unit, such as 4G, 4Gi or 4000M."
    ),
    click.option(
        "--mig-profile",
        metavar="NAME",
        shell_complete=completion.profiles,
        help="MIG profile of a slice, such as 2g.10gb or 1g.5gb+me.",
    ),
    click.option(
        "--count", metavar="N", help="Number of shares, each on a different GPU; not with --gpus. Default: 1."
    ),
    click.option(
        "--compute",
        metavar="PERCENT",
        help="Compute limit in percent, 1 to 100, for --gpu and --gpu-memory; needs MPS. Default: no limit.",
    ),
    click.option(
        "--isolation",
        metavar="hard|soft|none|any",
        default="soft",
        show_default=True,
        help="Minimum isolation from other programs.",
    ),
    click.option(
        "--gpu-model",
        metavar="TEXT",
        default="",
        help="Use only GPUs with TEXT in their product name; case is ignored.",
    ),
)
"""The options that parse_request takes."""

time_option = click.option(
    "--time",
    metavar="TIME",
    help="End the command after TIME, such as 45m, 4h or 1d12h. Default: no limit.",
)

preemptible_option = click.option(
    "--preemptible",
    is_flag=True,
    flag_value="true",
    default=None,
    help="End the command when another request needs its GPU, and start it again later.",
)

adopt_foreign_option = click.option(
    "--adopt-foreign",
    type=click.Choice(["keep", "destroy"]),
    default="keep",
    show_default=True,
    help="Keep or destroy idle instances that Tranche did not create, if they block the request.",
)
