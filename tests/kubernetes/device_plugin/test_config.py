"""Configuration: the v1 file, variables and flags, their precedence, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import PluginConfigInvalid
from tranche.kubernetes.device_plugin.config import PluginConfig, read_config
from tranche.kubernetes.device_plugin.config_source import StartSettings
from tranche.kubernetes.device_plugin.settings import (
    SETTINGS,
    UNSUPPORTED,
    DeviceIdStrategy,
    DeviceListStrategy,
    FallbackStrategy,
    UnsupportedOption,
    selected_key,
)
from tranche.kubernetes.node.replicas import ReplicaPolicy
from tranche.kubernetes.node.resources import MigStrategy

PUBLISHED = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: true
  nvidiaDriverRoot: /run/nvidia/driver
  gdsEnabled: true
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: uuid
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /host
  gfd:
    oneshot: false
    noTimestamp: false
    sleepInterval: 60s
    outputFile: /etc/kubernetes/node-feature-discovery/features.d/gfd
    machineTypeFile: /sys/class/dmi/id/product_name
"""


def test_a_published_file() -> None:
    assert read_config(yaml.safe_load(PUBLISHED)) == PluginConfig(
        mig_strategy=MigStrategy.MIXED,
        device_lists=(DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI),
        pass_device_specs=True,
        gds_enabled=True,
        driver_root="/run/nvidia/driver",
        driver_root_in_container="/host",
    )


@pytest.mark.parametrize("nothing", [None, {}, {"version": "v1"}, {"flags": None}, {"flags": {"plugin": None}}])
def test_nothing_given_is_the_default(nothing: object) -> None:
    assert read_config(nothing) == PluginConfig()


FILE = {"version": "v1", "flags": {"migStrategy": "none", "plugin": {"deviceIDStrategy": "index"}}}


def test_a_flag_wins_over_a_variable_and_that_over_the_file() -> None:
    environment = {"MIG_STRATEGY": "single", "DEVICE_LIST_STRATEGY": "volume-mounts,envvar"}
    config = read_config(FILE, environment=environment, flags={"--mig-strategy": "mixed"})
    assert config.mig_strategy is MigStrategy.MIXED
    assert config.device_lists == (DeviceListStrategy.VOLUME_MOUNTS, DeviceListStrategy.ENVVAR)
    assert config.device_id_strategy is DeviceIdStrategy.INDEX
    assert read_config(FILE, environment=environment).mig_strategy is MigStrategy.SINGLE
    assert read_config(FILE, environment={"MIG_STRATEGY": ""}).mig_strategy is MigStrategy.NONE


def test_an_empty_kubelet_socket_means_do_not_register() -> None:
    assert read_config(environment={"KUBELET_SOCKET": ""}).kubelet_socket == ""
    assert read_config(flags={"--kubelet-socket": "/x/kubelet.sock"}).plugin_folder.as_posix() == "/x"
    assert read_config(environment={"KUBELET_SOCKET": ""}).plugin_folder.as_posix() == "/var/lib/kubelet/device-plugins"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("t", True), ("TRUE", True), ("0", False), ("False", False)])
def test_booleans_are_read_as_go_reads_them(text: str, value: bool) -> None:
    assert read_config(environment={"PASS_DEVICE_SPECS": text}).pass_device_specs is value


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("version: v2", "unknown version: v2"),
        ("[1]", "must be a mapping"),
        ("flags: {migStrategy: both}", "flags.migStrategy: 'both' is not one of none, single, mixed"),
        ("flags: {plugin: {deviceListStrategy: [envvar, cdi]}}", "'cdi' is not one of"),
        ("flags: {plugin: {deviceListStrategy: []}}", "at least one strategy"),
        ("flags: {plugin: {deviceListStrategy: [auto, envvar]}}", "auto cannot be combined"),
        ("flags: {plugin: {passDeviceSpecs: perhaps}}", "must be true or false"),
        ("flags: {nvidiaDriverRoot: 3}", "flags.nvidiaDriverRoot must be a string"),
        ("flags: {renameByDefault: true}", "unknown field: flags.renameByDefault"),
        ("flags: {plugin: mixed}", "flags.plugin must be a mapping"),
        ("resources: {gpus: [{pattern: '*', name: gpu}]}", "resources.gpus is not supported"),
        ("imex: {channelIDs: [0]}", "imex.channelIDs is not supported"),
        ("flags: {deviceDiscoveryStrategy: tegra}", "flags.deviceDiscoveryStrategy is not supported"),
        ("flags: {failOnInitError: false}", "flags.failOnInitError is not supported"),
        ("flags: {gfd: {noTimestamp: true}}", "flags.gfd.noTimestamp is not supported"),
        ("flags: {gfd: {sleepInterval: infinite}}", "flags.gfd.sleepInterval is not supported"),
        ("flags: {gdsEnabled: true, plugin: {deviceListStrategy: cdi-cri}}", "gds-enabled is not supported when all"),
        ("flags: {plugin: {deviceListStrategy: cdi-cri, deviceIDStrategy: index}}", "index is not supported with CDI"),
    ],
)
def test_what_is_refused_is_named(file: str, words: str) -> None:
    with pytest.raises(PluginConfigInvalid) as refused:
        read_config(yaml.safe_load(file))
    assert words in refused.value.message


@pytest.mark.parametrize("refused", [item for item in UNSUPPORTED if item.flag], ids=lambda item: item.name)
def test_an_unsupported_flag_or_variable_is_refused_by_its_name(refused: Any) -> None:
    for given_as in ({"flags": {refused.flag: "9"}}, {"environment": {refused.environment[0]: "9"}}):
        with pytest.raises(PluginConfigInvalid) as error:
            read_config(None, **given_as)
        assert refused.flag in error.value.message or refused.environment[0] in error.value.message


@pytest.mark.parametrize("refused", [item for item in UNSUPPORTED if item.environment], ids=lambda item: item.name)
def test_every_variable_of_an_unsupported_setting_is_refused_unless_it_changes_nothing(
    refused: UnsupportedOption,
) -> None:
    for variable in refused.environment:
        with pytest.raises(PluginConfigInvalid, match=f"{variable} is not supported"):
            read_config(None, environment={variable: "9"})
        for harmless in refused.harmless:
            assert read_config(None, environment={variable: harmless}) == PluginConfig()


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_a_harmless_boolean_may_be_written_as_go_reads_it(text: str) -> None:
    assert read_config(None, environment={"FAIL_ON_INIT_ERROR": text}) == PluginConfig()
    with pytest.raises(PluginConfigInvalid, match="IMEX_REQUIRED is not supported"):
        read_config(None, environment={"IMEX_REQUIRED": text})


def test_an_unsupported_value_that_something_harmless_overrides_is_not_refused() -> None:
    file = {"flags": {"failOnInitError": False}}
    assert read_config(file, environment={"FAIL_ON_INIT_ERROR": "true"}) == PluginConfig()
    with pytest.raises(PluginConfigInvalid, match="--fail-on-init-error is not supported"):
        read_config(None, environment={"FAIL_ON_INIT_ERROR": "true"}, flags={"--fail-on-init-error": "false"})
    with pytest.raises(PluginConfigInvalid, match=r"flags\.failOnInitError is not supported"):
        read_config(file, environment={"FAIL_ON_INIT_ERROR": ""})


def test_no_two_settings_share_a_name() -> None:
    flags = [setting.flag for setting in (*SETTINGS, *UNSUPPORTED) if setting.flag]
    flags += [alias for setting in SETTINGS for alias in setting.aliases]
    variables = [name for setting in (*SETTINGS, *UNSUPPORTED) for name in setting.environment]
    assert len(set(flags)) == len(flags)
    assert len(set(variables)) == len(variables)
    fields = set(PluginConfig.__dataclass_fields__) - {"sharing"}
    assert {setting.field for setting in SETTINGS} - fields <= set(ReplicaPolicy.__dataclass_fields__)
    assert fields <= {setting.field for setting in SETTINGS}


def test_the_reference_page_has_every_setting_of_the_file() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "device-plugin.md").read_text()
    lines = (line.replace("`", "") for line in page.splitlines() if line.startswith("| `--"))
    rows = {cells[0]: cells for line in lines if (cells := [cell.strip() for cell in line.strip("|").split("|")])}
    assert {flag: row[1] for flag, row in rows.items()} == {
        each.flag: ".".join(each.place) for each in SETTINGS if each.place
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["version", "flags", "sharing", "resources", "imex"])


@given(st.dictionaries(KEYS, JSON | st.dictionaries(st.sampled_from(["migStrategy", "plugin", "mps", "gfd"]), JSON)))
def test_whatever_the_file_says_the_answer_is_a_configuration_or_a_reason(file: dict[str, Any]) -> None:
    with contextlib.suppress(PluginConfigInvalid):
        assert read_config(file).device_lists


def test_the_label_names_the_key() -> None:
    assert selected_key("a", ["a", "b"]) == "a"
    assert selected_key(None, ["a", "b"], default="b") == "b"
    assert selected_key(None, ["a", "default"]) == "default"
    assert selected_key(None, ["a"]) == "a"
    assert selected_key("", ["a"]) == "a", "an empty label names nothing"
    assert selected_key(None, ["a", "b"], fallbacks=[FallbackStrategy.EMPTY]) is None


@pytest.mark.parametrize(
    ("label", "keys", "default", "words"),
    [
        ("x", ["a"], "", "selects the configuration 'x'"),
        (None, ["a"], "y", "the default configuration selects the configuration 'y'"),
        (None, ["a", "b"], "", "no fallback configuration"),
        (None, [], "", "no fallback configuration"),
    ],
)
def test_a_key_that_is_not_there_is_an_error(label: str | None, keys: list[str], default: str, words: str) -> None:
    with pytest.raises(PluginConfigInvalid) as error:
        selected_key(label, keys, default=default)
    assert words in error.value.message


@pytest.mark.parametrize("text", ["flags: [", "flags: !!int x", "[" * 2000])
def test_a_text_that_is_not_yaml_is_an_error(text: str) -> None:
    with pytest.raises(PluginConfigInvalid, match="the configuration is not valid YAML"):
        StartSettings().read(text)
