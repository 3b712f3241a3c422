"""The device plugin's options of `tranche agent`: the flags that NVIDIA's plugin takes, those that are refused hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.core.errors import UsageError
from tranche.kubernetes.device_plugin.selection import Fallback
from tranche.kubernetes.device_plugin.settings import SETTINGS, UNSUPPORTED, Kind, Setting, Unsupported

if TYPE_CHECKING:
    from tranche.kubernetes.device_plugin.config_source import StartSettings


def _option(setting: Setting) -> click.Option:
    variables = ", ".join(f"${name}" for name in setting.environment)
    text = f"{setting.help} [{variables}]"
    names = [setting.flag, *setting.aliases]
    if setting.kind is Kind.LIST:
        return click.Option(names, multiple=True, metavar="NAME", help=text)
    if setting.kind is Kind.BOOLEAN:
        # As Go reads it: the flag alone means true, a value goes after `=`.
        return click.Option(names, is_flag=False, flag_value="true", metavar="BOOL", help=text)
    metavar = "|".join(setting.choices) if setting.choices else "TEXT"
    return click.Option(names, metavar=metavar, help=text)


def _refused(setting: Unsupported) -> click.Option:
    if setting.boolean:
        return click.Option([setting.flag], is_flag=False, flag_value="true", hidden=True)
    return click.Option([setting.flag], hidden=True)


PLUGIN_OPTIONS = (
    *map(_option, SETTINGS),
    *(_refused(setting) for setting in UNSUPPORTED if setting.flag),
    click.Option(
        ["--config-file"],
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        envvar="CONFIG_FILE",
        help="The device plugin's v1 configuration file. [$CONFIG_FILE]",
    ),
    click.Option(
        ["--plugin-config-map"],
        metavar="NAME",
        envvar="PLUGIN_CONFIG_MAP",
        default="",
        help="A ConfigMap of such files instead; the node's label nvidia.com/device-plugin.config names the key.",
    ),
    click.Option(
        ["--default-config"],
        metavar="KEY",
        envvar="DEFAULT_CONFIG",
        default="",
        help="The key for nodes without the label. [$DEFAULT_CONFIG]",
    ),
    click.Option(
        ["--fallback-strategies"],
        metavar="NAMES",
        envvar="FALLBACK_STRATEGIES",
        default="named,single",
        show_default=True,
        help="Without either: the key `default` (named), the only key (single), no file (empty). [$FALLBACK_STRATEGIES]",
    ),
)


def plugin_settings(values: Mapping[str, Any], environ: Mapping[str, str]) -> StartSettings:
    """What the options and the environment say; the file is read, not checked. UsageError for an unknown fallback."""
    from tranche.kubernetes.device_plugin.config_source import StartSettings

    flags: dict[str, str | Sequence[str]] = {}
    for flag in [*(setting.flag for setting in SETTINGS), *(refused.flag for refused in UNSUPPORTED if refused.flag)]:
        value = values[flag.removeprefix("--").replace("-", "_")]
        if value is not None and value != ():
            flags[flag] = value
    file: Path | None = values["config_file"]
    return StartSettings(
        environment=environ,
        flags=flags,
        file=file.read_text() if file is not None else "",
        config_map=values["plugin_config_map"],
        default_key=values["default_config"],
        fallbacks=tuple(_fallback(name.strip()) for name in values["fallback_strategies"].split(",")),
    )


def _fallback(name: str) -> Fallback:
    if name not in tuple(Fallback):
        raise UsageError(f"--fallback-strategies: '{name}' is none of {', '.join(Fallback)}")
    return Fallback(name)
