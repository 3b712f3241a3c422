"""Where the API server is and how to speak to it: a kubeconfig file, or the files that every pod is given.

Served are what a node's agent needs: client certificates and bearer tokens, inline or in files. Passwords, proxies and
`auth-provider` are refused by name; a credential plugin (`exec`) is run only for a person, where the caller says how.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tranche.core.errors import KubeconfigInvalid
from tranche.node.bounded import read_bounded
from tranche.node.yaml_reader import load_yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_UNSERVED = {
    "user": ("exec", "auth-provider", "username", "password", "as"),
    "cluster": ("proxy-url",),
}


@dataclass(frozen=True, slots=True)
class ApiServer:
    """One API server. `token` gives the bearer token of this moment, and is None where certificates say who we are.

    `namespace` is the one that the configuration names, else "default".
    """

    url: str
    tls: ssl.SSLContext | None = None
    token: Callable[[], str] | None = None
    namespace: str = "default"
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Credential:
    """What a credential plugin gives: a bearer token, or a client certificate with its key in PEM; the rest is empty."""

    token: str
    certificate: bytes = b""
    key: bytes = b""


CredentialPlugin = Callable[[Mapping[str, Any]], Credential]
"""From the settings under `exec` to what the plugin gives; KubeconfigInvalid where it gives nothing."""


def find_api_server(
    kubeconfig: str | None,
    environ: Mapping[str, str],
    *,
    service_account: Path = SERVICE_ACCOUNT,
    plugin: CredentialPlugin | None = None,
) -> ApiServer:
    """The API server of the named file, of `$KUBECONFIG`, or of the cluster whose pod this is, in this order.

    `~/.kube/config` is not looked at: an agent must not act with a person's rights by accident. KubeconfigInvalid when there is
    none of them, or when one cannot be used; without a `plugin` to run them, also when it names a credential plugin.
    """
    path = kubeconfig or environ.get("KUBECONFIG")
    if path:
        return _from_file(Path(path), plugin)
    if environ.get("KUBERNETES_SERVICE_HOST") and service_account.is_dir():
        return _in_cluster(environ, service_account)
    raise KubeconfigInvalid(
        "no Kubernetes API server is known: KUBECONFIG is not set, and this is not a pod",
        hint="set KUBECONFIG, or name the file with --kubeconfig",
    )


def _in_cluster(environ: Mapping[str, str], service_account: Path) -> ApiServer:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    try:
        tls = ssl.create_default_context(cafile=str(service_account / "ca.crt"))
        namespace = (service_account / "namespace").read_text().strip()
    except (OSError, ssl.SSLError) as error:
        raise KubeconfigInvalid(f"the service account in {service_account} cannot be used: {error}") from error
    return ApiServer(f"https://{host}:{port}", tls, _token_file(service_account / "token"), namespace)


def _from_file(path: Path, plugin: CredentialPlugin | None) -> ApiServer:
    try:
        config = load_yaml(read_bounded(path).decode())
    except (OSError, ValueError) as error:
        raise KubeconfigInvalid(f"cannot read the kubeconfig {path}: {error}") from error
    where = f"kubeconfig {path}"
    if not isinstance(config, dict):
        raise KubeconfigInvalid(f"{where} is not a mapping")
    context = _named(config, "contexts", "context", config.get("current-context"), where)
    cluster = _named(config, "clusters", "cluster", context.get("cluster"), where)
    user = _named(config, "users", "user", context.get("user"), where) if context.get("user") else {}
    for kind, entry in (("user", user), ("cluster", cluster)):
        for key in _UNSERVED[kind]:
            if entry.get(key) and not (key == "exec" and plugin is not None):
                raise KubeconfigInvalid(
                    f"{where}: '{key}' is not supported", hint="use a client certificate, a token or a tokenFile"
                )
    url = cluster.get("server")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise KubeconfigInvalid(f"{where}: the cluster has no usable 'server'")
    given = plugin(user["exec"]) if plugin is not None and isinstance(user.get("exec"), dict) else Credential("")
    return ApiServer(
        url.rstrip("/"),
        _tls(cluster, user, path, given) if url.startswith("https://") else None,
        (lambda: given.token) if given.token else _token(user, path),
        str(context.get("namespace") or "default"),
        cluster.get("tls-server-name"),
    )


def _named(config: Mapping[str, Any], group: str, kind: str, name: object, where: str) -> Mapping[str, Any]:
    entries = config.get(group)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
            found: Mapping[str, Any] = entry[kind]
            return found
    raise KubeconfigInvalid(f"{where} has no {kind} '{name}'")


def _token(user: Mapping[str, Any], config: Path) -> Callable[[], str] | None:
    if user.get("tokenFile"):
        return _token_file(config.parent / user["tokenFile"])
    if user.get("token"):
        token = str(user["token"])
        return lambda: token
    return None


def _token_file(path: Path) -> Callable[[], str]:
    """Reads it for each request: the kubelet replaces the tokens of pods about once an hour."""

    def read() -> str:
        try:
            return read_bounded(path).decode().strip()
        except (OSError, ValueError) as error:
            raise KubeconfigInvalid(f"cannot read the token {path}: {error}") from error

    return read


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], config: Path, given: Credential) -> ssl.SSLContext:
    where = f"kubeconfig {config}"
    try:
        authority = _pem(cluster, "certificate-authority", config)
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        certificate = given.certificate or _pem(user, "client-certificate", config)
        key = given.key or _pem(user, "client-key", config)
        if certificate and key:
            _load_client_certificate(tls, certificate, key)
    except (OSError, ValueError) as error:
        raise KubeconfigInvalid(f"{where}: its certificates cannot be used: {error}") from error
    return tls


def _pem(entry: Mapping[str, Any], key: str, config: Path) -> bytes:
    """The PEM text under `key` or, in base64, under `key-data`; empty when there is neither."""
    data = entry.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"'{key}-data' is not base64") from error
    return read_bounded(config.parent / entry[key]) if entry.get(key) else b""


def _load_client_certificate(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL takes a certificate from a file only; this one is readable by us alone, and gone before we return."""
    descriptor, path = tempfile.mkstemp(prefix="tranche-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate + b"\n" + key)
        tls.load_cert_chain(path)
    finally:
        os.unlink(path)
