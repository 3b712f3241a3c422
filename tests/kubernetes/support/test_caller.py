"""How a person's cluster is found: files in kubectl's order, and credential plugins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tranche.core.errors import KubeconfigInvalid
from tranche.kubernetes.api.kubeconfig import caller_api_server, credential_of_plugin

TOKEN = {"status": {"token": "secret"}}


def kubeconfig(path: Path, server: str, user: dict[str, Any] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def plugin(code: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", code], **more}


def printing(answer: object) -> str:
    return f"print({json.dumps(answer)!r})"


def test_the_named_file_then_the_variable_then_the_home(tmp_path: Path) -> None:
    named, variable = (
        kubeconfig(tmp_path / "named", "http://named"),
        kubeconfig(tmp_path / "variable", "http://variable"),
    )
    kubeconfig(tmp_path / ".kube" / "config", "http://home")
    environ = {"KUBECONFIG": str(variable)}
    assert caller_api_server(str(named), environ, tmp_path).url == "http://named"
    assert caller_api_server(None, environ, tmp_path).url == "http://variable"
    assert caller_api_server(None, {}, tmp_path).url == "http://home"


def test_a_credential_plugin_is_run_with_its_settings(tmp_path: Path) -> None:
    code = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO']);"
        "print(json.dumps({'status': {'token': asked['kind'] + os.environ['PROFILE']}}))"
    )
    user = {"exec": plugin(code, env=[{"name": "PROFILE", "value": "-admin"}])}
    server = caller_api_server(str(kubeconfig(tmp_path / "c", "http://x", user)), {}, tmp_path)
    assert server.token is not None
    assert server.token() == "ExecCredential-admin"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (plugin("import sys; sys.exit('log in first')"), "log in first"),
        (plugin("print('no json')"), "returned no credential"),
        (plugin(printing({"status": {}})), "returned no credential"),
        (plugin(printing([])), "returned no credential"),
        ({"command": "no-such-program", "installHint": "install it"}, "cannot run"),
        ({}, "cannot run"),
    ],
    ids=["fails", "no json", "empty", "a list", "not there", "no command"],
)
def test_a_plugin_that_gives_nothing_is_a_clear_error(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(KubeconfigInvalid, match=said) as raised:
        credential_of_plugin(settings)
    assert "secret" not in raised.value.message
    assert raised.value.hint == settings.get("installHint", "")


def test_no_cluster_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigInvalid, match="found no Kubernetes API server"):
        caller_api_server(None, {}, tmp_path)
