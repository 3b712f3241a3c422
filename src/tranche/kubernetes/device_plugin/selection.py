"""Which configuration of a ConfigMap a node uses: the one that its label names. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from tranche.core.errors import PluginConfigInvalid

CONFIG_LABEL = "nvidia.com/device-plugin.config"


class FallbackStrategy(StrEnum):
    """What a node without the label uses: the key `default`, the only key, or no file at all."""

    NAMED = "named"
    SINGLE = "single"
    EMPTY = "empty"


DEFAULT_FALLBACKS = (FallbackStrategy.NAMED, FallbackStrategy.SINGLE)


def selected_key(
    label: str | None,
    keys: Collection[str],
    *,
    default: str = "",
    fallbacks: Sequence[FallbackStrategy] = DEFAULT_FALLBACKS,
) -> str | None:
    """The key to use, None for an empty configuration: the label's, else `default`, else the first fallback that applies.

    Raises:
        PluginConfigInvalid: the label or the default names no key, or no fallback applies.
    """
    for name, source in ((label, f"the label {CONFIG_LABEL}"), (default, "the default configuration")):
        if name:
            if name in keys:
                return name
            raise PluginConfigInvalid(
                f"{source} selects the configuration '{name}', which the ConfigMap does not contain",
                hint=f"it contains: {', '.join(sorted(keys)) or 'nothing'}",
            )
    for fallback in fallbacks:
        if fallback is FallbackStrategy.NAMED and "default" in keys:
            return "default"
        if fallback is FallbackStrategy.SINGLE and len(keys) == 1:
            return next(iter(keys))
        if fallback is FallbackStrategy.EMPTY:
            return None
    raise PluginConfigInvalid(
        f"the node has no label {CONFIG_LABEL}, and the ConfigMap has no fallback configuration",
        hint=f"label the node with one of: {', '.join(sorted(keys)) or '(the ConfigMap is empty)'}",
    )
