"""Finding the API server: kubeconfig files, and the files of a pod."""

from __future__ import annotations

import base64
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tranche.core.errors import KubeconfigInvalid
from tranche.kubernetes.api.kubeconfig import find_api_server


def write_config(path: Path, *, cluster: dict[str, Any], user: dict[str, Any], **context: str) -> Path:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "other", "cluster": {}}, {"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=test", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_the_variable_names_the_file_and_the_option_wins(tmp_path: Path) -> None:
    first = write_config(tmp_path / "first", cluster={"server": "http://one:1/"}, user={})
    second = write_config(tmp_path / "second", cluster={"server": "http://two:2"}, user={}, namespace="there")
    assert find_api_server(None, {"KUBECONFIG": str(first)}).url == "http://one:1"
    server = find_api_server(str(second), {"KUBECONFIG": str(first)})
    assert (server.url, server.namespace, server.token, server.tls) == ("http://two:2", "there", None, None)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("apiVersion: v1", "context"),
        ("{current-context: '', contexts: [{name: '', context: {}}]}", "context"),
        ("{current-context: here, contexts: [{name: here, context: {}}]}", "cluster"),
    ],
)
def test_a_file_that_leaves_something_out_is_told_what(tmp_path: Path, content: str, kind: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(KubeconfigInvalid, match=f"does not specify which {kind} to use"):
        find_api_server(str(tmp_path / "config"), {})


def test_the_variable_lists_files_as_for_kubectl(tmp_path: Path) -> None:
    """Of each name the first file that has it counts, files that are not there do not, and paths are each file's own."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = tmp_path / "a" / "config", tmp_path / "b" / "config"
    first.write_text(yaml.safe_dump({"clusters": [{"name": "c", "cluster": {"server": "http://one:1"}}]}))
    write_config(second, cluster={"server": "http://two:2"}, user={"tokenFile": "token"}, namespace="there")
    (tmp_path / "b" / "token").write_text("secret")
    server = find_api_server(None, {"KUBECONFIG": f"{tmp_path / 'gone'}:{first}::{second}"})
    assert (server.url, server.namespace) == ("http://one:1", "there")
    assert server.token is not None
    assert server.token() == "secret"
    reverse = find_api_server(None, {"KUBECONFIG": f"{second}:{first}"})
    assert reverse.url == "http://two:2"
    with pytest.raises(KubeconfigInvalid, match=r"cannot read the kubeconfig .*gone"):
        find_api_server(None, {"KUBECONFIG": f"{tmp_path / 'gone'}:{tmp_path / 'gone-too'}"})
    with pytest.raises(KubeconfigInvalid, match=r"cannot read the kubeconfig .*:"):
        find_api_server(f"{first}:{second}", {})  # the option names one file


def test_certificates_are_taken_inline_and_from_files_beside_the_config(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    (tmp_path / "ca.pem").write_bytes(cert.read_bytes())
    inline = {
        "client-certificate-data": base64.b64encode(cert.read_bytes()).decode(),
        "client-key-data": base64.b64encode(key.read_bytes()).decode(),
    }
    cluster = {"server": "https://one", "certificate-authority": "ca.pem", "tls-server-name": "kubernetes"}
    server = find_api_server(str(write_config(tmp_path / "config", cluster=cluster, user=inline)), {})
    assert server.tls is not None
    assert server.tls.verify_mode is ssl.CERT_REQUIRED
    assert len(server.tls.get_ca_certs()) == 1, "the cluster's own authority, and none of the system's"
    assert server.server_name == "kubernetes"


def test_a_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    config = write_config(tmp_path / "config", cluster={"server": "http://one"}, user={"tokenFile": "token"})
    token = find_api_server(str(config), {}).token
    assert token is not None
    assert token() == "one"
    (tmp_path / "token").write_text("two\n")
    assert token() == "two"
    (tmp_path / "token").unlink()
    with pytest.raises(KubeconfigInvalid, match="cannot read the token"):
        token()


def test_a_pod_uses_its_service_account(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    (tmp_path / "ca.crt").write_bytes(certificate[0].read_bytes())
    (tmp_path / "namespace").write_text("tranche-system")
    (tmp_path / "token").write_text("secret")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    server = find_api_server(None, environ, service_account=tmp_path)
    assert (server.url, server.namespace) == ("https://[fd00::1]:6443", "tranche-system")
    assert server.token is not None
    assert server.token() == "secret"


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ({"server": "https://one"}, {"exec": {"command": "aws"}}, "'exec' is not supported"),
        ({"server": "https://one"}, {"auth-provider": {"name": "x"}}, "'auth-provider' is not supported"),
        ({"server": "https://one", "proxy-url": "http://p"}, {}, "'proxy-url' is not supported"),
        ({}, {}, "no usable 'server'"),
        ({"server": "ftp://one"}, {}, "no usable 'server'"),
        ({"server": "https://one", "certificate-authority-data": "%"}, {}, "not base64"),
        ({"server": "https://one", "certificate-authority": "missing.pem"}, {}, "certificates cannot be used"),
        ({"server": "https://one", "certificate-authority-data": "aGVsbG8="}, {}, "certificates cannot be used"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], message: str
) -> None:
    config = write_config(tmp_path / "config", cluster=cluster, user=user)
    with pytest.raises(KubeconfigInvalid, match=message):
        find_api_server(str(config), {})


@pytest.mark.parametrize("text", ["[", "- a", "{}", "contexts: 3", "\0", "a: 2020-13-45", "[" * 2000])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(KubeconfigInvalid):
        find_api_server(str(tmp_path / "config"), {})


def test_without_any_the_hint_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigInvalid) as caught:
        find_api_server(None, {"HOME": str(tmp_path)}, service_account=tmp_path / "none")
    assert "KUBECONFIG" in caught.value.hint
