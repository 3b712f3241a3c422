"""What the chart makes of its values, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from release.chart import CHART, KubeObject, cases, render
from release.chart_check import problems
from release.dashboards import dashboard_files
from release.errors import ReleaseError
from release.helm import helm
from release.kubernetes_schemas import VERSIONS
from release.monitoring import MONITORING

from tests.conftest import Golden
from tests.support.length import some_of

pytestmark = pytest.mark.helm
DEFAULTS = "defaults"
PARTS = ("migManager", "devicePlugin", "featureLabels", "metrics")
MONITORS = ("serviceMonitor", "podMonitor")


def by_name(objects: list[KubeObject]) -> dict[tuple[str, str], KubeObject]:
    """All but the layouts that are shown and the DeviceClasses, which other tests have."""
    named = {(item["kind"], item["metadata"]["name"]): item for item in objects if item["kind"] != "DeviceClass"}
    return {name: item for name, item in named.items() if name != ("ConfigMap", "default-mig-parted-config")}


def as_text(objects: list[KubeObject]) -> str:
    return yaml.safe_dump_all(objects, width=130, sort_keys=True)


@pytest.mark.parametrize("case", cases())
def test_each_case_makes_these_objects(case: str, golden: Golden) -> None:
    """The default objects in full; of another case, those that differ and the names of those that are not there."""
    made = by_name(render(files=(cases()[case],)))
    if case == DEFAULTS:
        golden("chart-defaults.yaml", as_text([made[name] for name in sorted(made)]))
        return
    usual = by_name(render(files=(cases()[DEFAULTS],)))
    different = [made[name] for name in sorted(made) if made[name] != usual.get(name)]
    missing = [f"{kind} {name}" for kind, name in sorted(usual.keys() - made.keys())]
    golden(f"chart-{case}.yaml", as_text([*different, {"missing": missing}]))


def notes(folder: Path, **values: Any) -> str:
    """What `helm install` prints. Helm renders that text only with a cluster, so a field of an object holds it here."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart, dirs_exist_ok=True)
    text = chart / "templates" / "NOTES.txt"
    field = 'kind: Notes\nmetadata: {name: notes}\ntext: {{ include "notes" . | toJson }}'
    (chart / "templates" / "notes.yaml").write_text(
        f'{{{{- define "notes" }}}}{text.read_text()}{{{{- end }}}}\n{field}\n'
    )
    text.unlink()
    return str(by_name(render(values, chart=chart))["Notes", "notes"]["text"])


def test_the_notes_name_only_commands_that_the_values_allow(tmp_path: Path) -> None:
    """A layout applies in the mode `static` only, so the notes explain modes before they name a layout."""
    on = {"enabled": True}
    defaults, whole = notes(tmp_path), notes(tmp_path, dra=on, dashboard=on, controller=on)
    assert "nvidia.com/mig.config=all-balanced" in defaults
    assert "tranche.dev/mode" not in defaults
    assert whole.index("tranche.dev/mode=mixed") < whole.index("Partition the GPUs of a static node")
    assert "port-forward service/" in whole
    assert "turns pods' annotations into claims" in whole
    assert "nvidia.com/mig.config" not in notes(tmp_path, migManager={"enabled": False})
    assert "migStrategy is not set" in defaults
    assert "migStrategy" not in notes(tmp_path, migStrategy="mixed")


def test_every_cluster_role_that_a_page_names_is_one_that_the_chart_makes() -> None:
    objects = [item for file in cases().values() for item in render(files=(file,))]
    made = {item["metadata"]["name"] for item in objects if item["kind"] == "ClusterRole"}
    root = CHART.parents[2]
    pages = [root / "README.md", root / "CHANGELOG.md", *root.glob("docs/**/*.md"), *CHART.glob("*.md")]
    named = {
        (name, page.name) for page in pages for each in _CLUSTER_ROLE.findall(page.read_text()) for name in each if name
    }
    assert {(name, page) for name, page in named if name.startswith("tranche")}, "no page names one any more"
    assert {(name, page) for name, page in named if name not in {*made, "edit", "view", "cluster-admin"}} == set()


_CLUSTER_ROLE = re.compile(r"(?:ClusterRole\s+`|--clusterrole[= ])([a-z0-9-]+)|`([a-z0-9-]+)`\s+ClusterRole")


_FEW_CASES = (DEFAULTS, "draining", "everything-chosen")
_OTHER_VALUES = {f"{case}-values.yaml" for case in cases() if case not in _FEW_CASES}


def broken(folder: Path, file: str, before: str, after: str) -> Path:
    """A copy of the chart with one wrong value, to be tried with few values."""
    chart = folder / "tranche"
    shutil.copytree(CHART, chart, ignore=lambda _, names: [each for each in names if each in _OTHER_VALUES])
    text = (chart / file).read_text()
    assert text.count(before) == 1
    (chart / file).write_text(text.replace(before, after))
    return chart


@pytest.mark.parametrize(
    "wrong",
    some_of(
        [
            # Templates: a field that does not exist, a wrong type, broken YAML, a value that does not exist.
            (
                "templates/daemonset.yaml",
                "terminationGracePeriodSeconds:",
                "terminationGraceSeconds:",
                "terminationGraceSeconds",
            ),
            ("templates/daemonset.yaml", "hostPID: true", "hostPID: yes please", "'yes please' is not of type"),
            ("templates/rights.yaml", "resources: [pods]", "resources: pods", "'pods' is not of type 'array'"),
            ("templates/networkpolicy.yaml", "policyTypes: [Ingress]", "policyTypes: [Ingress", "YAML parse error"),
            ("templates/namespace.yaml", "apiVersion: v1", "apiVersion: v2", "there is no Namespace v2"),
            ("templates/daemonset.yaml", ".Values.image.pullPolicy", ".Values.images.pullPolicy", "nil pointer"),
            # Values: of another type, outside the range, unknown.
            ("values.yaml", "healthPort: 9440", "healthPort: 0", "/healthPort"),
            ("values.yaml", "inUse: wait", "inUse: evict", "/migManager/inUse"),
            ("values.yaml", "pullPolicy: IfNotPresent", "pullpolicy: IfNotPresent", "pullpolicy"),
            # The schema: no schema, a value that it does not know.
            (
                "values.schema.json",
                '"healthPort": {"type": "integer", "minimum": 1',
                '"healthPort": {"type": "integer", "minimum": "1"',
                "minimum",
            ),
            ("values.schema.json", '"stateDirectory":', '"stateFolder":', "stateDirectory"),
            ("Chart.yaml", "apiVersion: v2", "apiVersion: v9", "apiVersion"),
        ],
        3,
    ),
    ids=lambda wrong: wrong[3],
)
def test_one_wrong_value_is_caught(tmp_path: Path, wrong: tuple[str, str, str, str]) -> None:
    file, before, after, said = wrong
    found = problems(broken(tmp_path, file, before, after), VERSIONS[-1:])
    assert any(said in line for line in found), found


def test_the_schema_is_closed_wherever_the_chart_gives_the_names(tmp_path: Path) -> None:
    def unknown(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        inner = [
            found for key, value in values.items() if isinstance(value, dict) for found in unknown(value, (*path, key))
        ]
        return [path, *inner]

    open_ones = {"podLabels", "podAnnotations", "nodeSelector", "nodeAffinity", "annotations", "data", "map"}
    open_ones |= {"requests", "limits", "additionalLabels", "labels"}
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in unknown(defaults):
        if open_ones & set(path):
            continue
        values: dict[str, Any] = {"surely-no-value": 1}
        for key in reversed(path):
            values = {key: values}
        with pytest.raises(ReleaseError, match="additional properties 'surely-no-value' not allowed"):
            render(values)


FOREIGN = yaml.safe_load((CHART / "foreign-values.yaml").read_text())


@pytest.mark.parametrize("path", FOREIGN)
def test_a_value_of_nvidias_charts_is_refused_with_the_new_way(path: str) -> None:
    values: Any = {"anything": "x"}
    for key in reversed(path.split(".")):
        values = {key: values}
    with pytest.raises(ReleaseError) as caught:
        render(values)
    assert f"{path} is a value of NVIDIA's charts: {FOREIGN[path]}" in str(caught.value)


@pytest.mark.parametrize("path", some_of((path for path in FOREIGN if "." not in path), 6))
def test_such_a_value_is_refused_also_when_it_is_switched_off(path: str) -> None:
    with pytest.raises(ReleaseError, match=f"{path} is a value of NVIDIA's charts"):
        render({path: False})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"config": {"name": "a", "map": {"b": "version: v1"}}}, "set only one of them"),
        ({"migManager": {"config": {"create": True}}}, "config.yaml"),
        ({"migManager": {"config": {"data": {"config.yaml": ""}}}}, "migManager.config.create=true"),
        ({part: {"enabled": False} for part in PARTS}, "all parts of the agent are disabled"),
        ({"metrics": {"enabled": False, "podMonitor": {"enabled": True}}}, "metrics.enabled=true"),
        ({"metrics": {each: {"enabled": True} for each in MONITORS}}, "scraped twice"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
        ({"nodeDiscovery": "any"}, "rollout.maxUnavailable to a number"),
        (
            {"nodeDiscovery": "any", "rollout": {"maxUnavailable": 3}, "runtimeClassName": "nvidia"},
            "do not have the runtime",
        ),
        ({"namespaceOverride": "default"}, "--namespace tranche-system"),
        ({"boot": {"enabled": True}, "stateDirectory": "/srv/tranche"}, "stateDirectory=/var/lib/tranche"),
        ({"boot": {"partition": "7*19"}}, "boot.enabled=true"),
        ({"healthPort": 9441}, "healthPort and metrics.port are the same"),
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "set fullnameOverride"),
        ({"extraEnv": [{"name": "NODE_NAME", "value": "x"}]}, "NODE_NAME differs between the agents' pods"),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}, "rollingUpdate/maxUnavailable"),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "0%"}}}, "rollingUpdate/maxUnavailable"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "rollingUpdate/maxUnavailable"),
        ({"stateDirectory": "/"}, "stateDirectory"),
        ({"stateDirectory": "/var/lib"}, "stateDirectory"),
        ({"stateDirectory": "/srv/"}, "stateDirectory"),
        ({"dashboard": {"act": True}}, "dashboard.act has no effect without dashboard.enabled=true"),
        ({"config": {"default": "foo"}}, "config.default names a key"),
        (
            {"migStrategy": "mixed", "extraArgs": ["--mig-strategy=single"]},
            "a value of the chart already sets --mig-strategy",
        ),
        ({"verbose": True, "extraArgs": ["--verbose"]}, "a value of the chart already sets --verbose"),
        ({"kubeletPath": "/var/lib/kubelet/../.."}, "kubeletPath"),
        ({"metrics": {"from": [{"podSelecter": {}, "namespaceSelector": {}}]}}, "podSelecter"),
        ({"metrics": {"from": [{}]}}, "minProperties"),
        ({"boot": {"enabled": True, "partition": "7 slices"}}, "boot/partition"),
        ({"boot": {"enabled": True, "partition": "19,,19"}}, "boot/partition"),
        ({"boot": {"enabled": True, "partition": "7*nonsense"}}, "boot/partition"),
        ({"boot": {"enabled": True, "program": "tranche"}}, "boot/program"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ReleaseError) as caught:
        render(values)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "partition", ["7*19", "19,2*1g.5gb", "1c.3g.20gb", "1g.10gb+me", "all-1g.5gb", "my_own.layout"]
)
def test_slices_and_names_of_layouts_are_taken_for_the_cut_at_boot(partition: str) -> None:
    assert render({"boot": {"enabled": True, "partition": partition}})


def test_options_that_no_value_has_given_are_taken() -> None:
    repeated = ["--refresh-seconds=5", "--without=metrics"]
    (daemon_set,) = (each for each in render({"extraArgs": repeated}) if each["kind"] == "DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == repeated


@pytest.mark.parametrize("surge", [None, 0, "0%", 1, "10%"])
def test_agents_stand_by_where_an_upgrade_starts_the_new_one_first(surge: int | str | None) -> None:
    surges = surge in (1, "10%")
    rolling = {"maxUnavailable": 0 if surges else 1, "maxSurge": surge}
    (daemon_set,) = (
        each for each in render({"updateStrategy": {"rollingUpdate": rolling}}) if each["kind"] == "DaemonSet"
    )
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert ("--stand-by" in container["args"]) is surges


def test_a_cluster_without_admission_policies_is_refused_unless_that_is_accepted() -> None:
    with pytest.raises(ReleaseError, match=r"admissionPolicy\.enabled=false"):
        render(kubernetes="1.29.0")
    kinds = {item["kind"] for item in render({"admissionPolicy": {"enabled": False}}, kubernetes="1.29.0")}
    assert "DaemonSet" in kinds
    assert not any("Admission" in kind for kind in kinds)


@pytest.mark.parametrize("monitor", MONITORS)
def test_a_monitor_finds_the_agents_and_leaves_their_metrics_labels(monitor: str) -> None:
    objects = render({"metrics": {monitor: {"enabled": True}}})
    kinds = {item["kind"]: item for item in objects}
    made = kinds[monitor[0].upper() + monitor[1:]]["spec"]
    selected = kinds["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    if monitor == "serviceMonitor":
        assert kinds["Service"]["spec"]["selector"].items() <= selected.items()
        selected = kinds["Service"]["metadata"]["labels"]
    assert made["selector"]["matchLabels"].items() <= selected.items()
    (endpoint,) = made["endpoints" if monitor == "serviceMonitor" else "podMetricsEndpoints"]
    assert endpoint["honorLabels"]
    assert endpoint["port"] in [
        port["name"] for port in kinds["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["ports"]
    ]
    with pytest.raises(ReleaseError, match="install the Prometheus Operator"):
        render({"metrics": {monitor: {"enabled": True}}}, apis=())


def test_alerts_and_dashboards_are_those_of_the_monitoring_folder() -> None:
    wanted = {
        "prometheusRule": {"enabled": True, "additionalLabels": {"release": "x"}},
        "dashboards": {"enabled": True},
    }
    made = by_name(render({"metrics": wanted}))
    rule = made["PrometheusRule", "tranche-agent"]
    assert rule["spec"] == yaml.safe_load((MONITORING / "rules.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "x"
    shown = [item for (kind, name), item in made.items() if kind == "ConfigMap" and "dashboard" in name]
    assert all(item["metadata"]["labels"]["grafana_dashboard"] == "1" for item in shown)
    files = {name: json.loads(text) for item in shown for name, text in item["data"].items()}
    assert files == {f"tranche-{name}": json.loads(text) for name, text in dashboard_files().items()}
    with pytest.raises(ReleaseError, match="install the Prometheus Operator"):
        render({"metrics": wanted}, apis=())


def test_alerts_link_to_the_runbooks_where_the_reader_keeps_them() -> None:
    def annotations(url: str) -> dict[str, dict[str, str]]:
        made = by_name(render({"metrics": {"prometheusRule": {"enabled": True, "runbookUrl": url}}}))
        rules = [rule for group in made["PrometheusRule", "tranche-agent"]["spec"]["groups"] for rule in group["rules"]]
        return {rule["alert"]: rule["annotations"] for rule in rules if "alert" in rule}

    plain = annotations("")
    assert not [name for name, each in plain.items() if "runbook_url" in each]
    linked = annotations("https://git.example.com/a$1/{alert}.md?plain=1")
    assert linked == {
        name: {**each, "runbook_url": f"https://git.example.com/a$1/{name}.md?plain=1"} for name, each in plain.items()
    }
    with pytest.raises(ReleaseError, match="runbookUrl"):
        annotations("https://git.example.com/runbooks")


def test_several_releases_get_names_of_their_own() -> None:
    def names(release: str, **values: object) -> set[str]:
        return {item["metadata"]["name"].removesuffix("-own-node") for item in render(values, release=release)}

    assert "tranche-agent" in names("tranche")
    # Both show the same layouts; that one is in the namespace of each.
    assert names("tranche") & names("second") == {"default-mig-parted-config"}
    assert {"second-tranche-agent"} <= names("second")
    assert {"mine"} <= names("second", fullnameOverride="mine")


def test_a_packaged_chart_makes_the_same_objects(tmp_path: Path) -> None:
    """The rules and dashboards that the checkout links to are in the package, and the cases are not."""
    subprocess.run([helm(), "package", CHART, f"--destination={tmp_path}"], check=True, capture_output=True)
    (package,) = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        names = archive.getnames()
    assert "tranche/monitoring/rules.yaml" in names
    assert not [name for name in names if name.startswith("tranche/ci")]
    for file in cases().values():
        assert render(files=(file,), chart=package) == render(files=(file,))
