"""The manifest agrees with the program that it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tranche.cli import agent

MANIFEST = Path(__file__).parents[2] / "deploy" / "tranche-agent.yaml"


def objects(kind: str) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(MANIFEST.read_text()) if item["kind"] == kind]


def default(name: str) -> Any:
    (found,) = (parameter.default for parameter in agent.command.params if parameter.name == name)
    return found


def test_the_probes_ask_the_port_that_the_agent_serves() -> None:
    (daemon_set,) = objects("DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "health", "containerPort": default("health_port")}]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "health"}


def test_each_variable_that_an_option_is_read_from_is_known_to_the_agent() -> None:
    (daemon_set,) = objects("DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    known = {name for parameter in agent.command.params for name in _variables(parameter.envvar)}
    given = {entry["name"] for entry in container["env"] if not entry["name"].startswith("NVIDIA_")}
    assert given == {"NODE_NAME", "POD_NAMESPACE"}
    assert given <= known


def test_every_folder_that_the_agent_works_in_is_the_hosts_at_the_same_path() -> None:
    (daemon_set,) = objects("DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    # The host's root is mounted to be read: driver files are looked for under it.
    assert volumes.pop("driver-root") == "/"
    (read_only,) = (mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "driver-root")
    assert read_only["readOnly"]
    assert mounts.pop("driver-root") == "/driver-root"
    assert volumes == mounts
    assert str(Path(default("pod_resources_socket")).parent) in mounts.values()


def test_every_right_is_bound_to_the_account_that_the_agent_runs_as() -> None:
    (daemon_set,) = objects("DaemonSet")
    account = daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
    namespace = daemon_set["metadata"]["namespace"]
    bound = set()
    for binding in objects("ClusterRoleBinding") + objects("RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
    roles = {(role["kind"], role["metadata"]["name"]) for role in objects("ClusterRole") + objects("Role")}
    assert bound == roles


def test_nothing_may_be_deleted_and_no_secret_read() -> None:
    for role in objects("ClusterRole") + objects("Role"):
        for rule in role["rules"]:
            assert not {"delete", "deletecollection", "update", "*"} & set(rule["verbs"])
            assert not {"secrets", "*"} & set(rule["resources"])


def _variables(envvar: object) -> list[str]:
    return [envvar] if isinstance(envvar, str) else list(envvar) if isinstance(envvar, list | tuple) else []
