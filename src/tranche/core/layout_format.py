"""The v1 layout format of mig-parted: from decoded YAML or JSON to a LayoutFile, and back.

The format defines the rules, their messages and the accepted oddities: unknown keys are errors, `2.0` is a count and `"2"` is
not, an empty document is a file without layouts. This module does not check what a GPU can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tranche.core.errors import LayoutInvalid, UsageError
from tranche.core.layout import DeviceFilter, Layout, LayoutFile, LayoutSpec, parse_device_filter
from tranche.core.profile import ProfileName, parse_profile

VERSION = "v1"

_HINT = "for the format, see docs/reference/layouts.md"


def parse_layouts(data: object, *, source: str = "the configuration file") -> LayoutFile:
    """The layouts of a decoded document; raises LayoutInvalid with the broken rule and its location."""
    if data is None:
        return LayoutFile((), source)
    document = _mapping(data, "the document")
    if not document:
        return LayoutFile((), source)
    if "version" not in document:
        raise _invalid("unable to parse with missing 'version' field")
    version = document["version"]
    if version is not None and not isinstance(version, str):
        raise _invalid(f"'version' must be a string, not {_kind(version)}; write version: {VERSION}")
    if version != VERSION:
        raise _invalid(f"unknown version: {version or ''}")
    for key in document:
        if key not in ("version", "mig-configs"):
            raise _invalid(f"unexpected field: {key}")
    if "mig-configs" not in document:
        return LayoutFile((), source)
    configs = {} if document["mig-configs"] is None else _mapping(document["mig-configs"], "'mig-configs'")
    if not configs:
        raise _invalid("at least one entry in 'mig-configs' is required")
    return LayoutFile(tuple(_parse_layout(name, entries) for name, entries in configs.items()), source)


def layouts_to_data(file: LayoutFile) -> dict[str, Any]:
    """The file as data for the format's readers, keys in the format's usual order."""
    data: dict[str, Any] = {"version": VERSION}
    if file.layouts:  # the format refuses an empty 'mig-configs'
        data["mig-configs"] = {layout.name: [_spec_to_data(spec) for spec in layout.specs] for layout in file.layouts}
    return data


def _parse_layout(name: str, entries: object) -> Layout:
    if entries is not None and not isinstance(entries, list):
        raise _invalid(f"'{name}' must be a list, not {_kind(entries)}")
    if not entries:
        raise _invalid(f"at least one entry in '{name}' is required")
    specs = []
    for number, entry in enumerate(entries, start=1):
        try:
            specs.append(_parse_spec(entry))
        except LayoutInvalid as error:
            raise _invalid(f"layout '{name}', entry {number}: {error.message}") from error
    return Layout(name, tuple(specs))


def _parse_spec(data: object) -> LayoutSpec:
    entry = _mapping(data, "the entry")
    for required in ("devices", "mig-enabled"):
        if required not in entry:
            raise _invalid(f"missing required field: {required}")
    for key in entry:
        if key not in ("device-filter", "devices", "mig-enabled", "mig-devices"):
            raise _invalid(f"unexpected field: {key}")
    enabled = entry["mig-enabled"] if entry["mig-enabled"] is not None else False
    if not isinstance(enabled, bool):
        raise _invalid(f"'mig-enabled' must be true or false, not {_kind(enabled)}")
    filters = _parse_filters(entry.get("device-filter"))
    devices = _parse_devices(entry["devices"])
    wanted = entry.get("mig-devices")
    if enabled and wanted is None:
        raise _invalid("missing required field 'mig-devices' when 'mig-enabled' is true")
    counts = {} if wanted is None else _mapping(wanted, "'mig-devices'")
    if not enabled and counts:
        raise _invalid("MIG devices included when 'mig-enabled' is false")
    return LayoutSpec(enabled, _parse_slices(counts) if counts else (), devices, filters)


def _parse_filters(data: object) -> tuple[DeviceFilter, ...]:
    if data is None or data == "":
        return ()
    return tuple(_parse_filter(text) for text in (data if isinstance(data, list) else [data]))


def _parse_filter(text: object) -> DeviceFilter:
    if not isinstance(text, str):
        raise _invalid(
            f"'device-filter' must be a string or a list of strings, not {_kind(text)}; quote it: \"0x20B210DE\""
        )
    return parse_device_filter(text)


def _parse_devices(data: object) -> tuple[int, ...] | None:
    if data == "all":
        return None
    if not isinstance(data, list):
        raise _invalid(f"'devices' must be \"all\" or a list of integers, not {_kind(data)}")
    return tuple(_integer(index, "an entry of 'devices'") for index in data)


def _parse_slices(wanted: Mapping[str, Any]) -> tuple[tuple[ProfileName, int], ...]:
    counts: dict[ProfileName, int] = {}
    numbers = {name: _integer(count, f"the count of '{name}' in 'mig-devices'") for name, count in wanted.items()}
    for name, count in numbers.items():
        try:
            profile = parse_profile(name)
        except UsageError as error:
            raise _invalid_slices(error.message) from error
        if count < 0:
            raise _invalid_slices(f"the count of '{name}' is negative: {count}")
        counts[profile] = counts.get(profile, 0) + count
    if not any(counts.values()):
        raise _invalid_slices("all counts for all MigProfiles are 0")
    return tuple(sorted((profile, count) for profile, count in counts.items() if count))


def _integer(value: object, what: str) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(f"{what} must be an integer, not {_kind(value)}")
    return value


def _mapping(data: object, what: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise _invalid(f"{what} must be a mapping, not {_kind(data)}")
    return {_key(key, what): value for key, value in data.items()}


def _key(key: object, what: str) -> str:
    """A mapping's key as text: the format writes numbers and booleans as JSON does."""
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise _invalid(f"a key of {what} must be text, not {_kind(key)}")


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the string '{value}'"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "null" if value is None else type(value).__name__


def _spec_to_data(spec: LayoutSpec) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if spec.filters:
        texts = [device_filter.text for device_filter in spec.filters]
        data["device-filter"] = texts[0] if len(texts) == 1 else texts
    data["devices"] = "all" if spec.devices is None else list(spec.devices)
    data["mig-enabled"] = spec.mig_enabled
    data["mig-devices"] = {str(profile): count for profile, count in spec.slices}
    return data


def _invalid_slices(rule: str) -> LayoutInvalid:
    return _invalid(f"error validating values in 'mig-devices' field: {rule}")


def _invalid(message: str) -> LayoutInvalid:
    return LayoutInvalid(message, hint=_HINT)
