"""Where the API server is and how to speak to it: from a kubeconfig file, or from the files that every pod gets.

It supports what a node's agent needs: client certificates and bearer tokens, inline or in files. It refuses passwords, proxies
and `auth-provider` by name. It runs a credential plugin (`exec`), as clouds use them, only for a person.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tranche.core.errors import KubeconfigInvalid
from tranche.node.files.files import load_yaml, read_bounded

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLUGIN_SECONDS = 60.0
_UNSERVED = {
    "user": ("exec", "auth-provider", "username", "password", "as"),
    "cluster": ("proxy-url",),
}


@dataclass(frozen=True, slots=True)
class ApiServer:
    """One API server. `token` returns the current bearer token, and is None where a certificate identifies us.

    `namespace` is the one that the configuration names, else "default".
    """

    url: str
    tls: ssl.SSLContext | None = None
    token: Callable[[], str] | None = None
    namespace: str = "default"
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class PluginCredentials:
    """What a credential plugin returns: a bearer token, or a client certificate with its key in PEM; the rest is empty."""

    token: str
    certificate: bytes = b""
    key: bytes = b""


def find_api_server(
    kubeconfig: str | None,
    environ: Mapping[str, str],
    *,
    service_account: Path = SERVICE_ACCOUNT,
    by_person: bool = False,
) -> ApiServer:
    """The API server of the named file, of `$KUBECONFIG`, or of the cluster whose pod this is, in this order.

    `$KUBECONFIG` may list several files, read as kubectl reads them: the first entry of each name counts, and missing files are
    skipped. `~/.kube/config` is ignored: an agent must not act with a person's rights by accident. KubeconfigInvalid when none is
    found or one cannot be used; unless a person asks, also when it names a credential plugin.
    """
    if kubeconfig:
        return _from_files([Path(kubeconfig)], by_person)
    if listed := [Path(each) for each in environ.get("KUBECONFIG", "").split(os.pathsep) if each]:
        return _from_files([each for each in listed if not _is_missing(each)] or listed[:1], by_person)
    if environ.get("KUBERNETES_SERVICE_HOST") and service_account.is_dir():
        return _in_cluster(environ, service_account)
    raise KubeconfigInvalid(
        "found no Kubernetes API server: KUBECONFIG is not set, and this is not a pod",
        hint="set KUBECONFIG, or name the file with --kubeconfig",
    )


def caller_api_server(kubeconfig: str | None, environ: Mapping[str, str], home: Path) -> ApiServer:
    """The user's: of the named file, of $KUBECONFIG, of ~/.kube/config, or of the cluster that this pod runs in.

    Raises:
        KubeconfigInvalid: there is none of them, or one cannot be used.
    """
    own = home / ".kube" / "config"
    if not kubeconfig and not environ.get("KUBECONFIG", "").strip(os.pathsep) and not _is_missing(own):
        kubeconfig = str(own)
    return find_api_server(kubeconfig, environ, by_person=True)


def _is_missing(path: Path) -> bool:
    """Whether there is no such file. One that this user may not look for counts as there, so that reading it says why."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _in_cluster(environ: Mapping[str, str], service_account: Path) -> ApiServer:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    try:
        tls = ssl.create_default_context(cafile=str(service_account / "ca.crt"))
        namespace = (service_account / "namespace").read_text().strip()
    except (OSError, ssl.SSLError) as error:
        raise KubeconfigInvalid(f"the service account in {service_account} cannot be used: {error}") from error
    return ApiServer(f"https://{host}:{port}", tls, _token_file(service_account / "token"), namespace)


class _Entry(NamedTuple):
    """A file's entry under a name. Paths in it are relative to the file's folder."""

    values: Mapping[str, Any]
    file: Path


_Configs = Sequence[_Entry]
"""Whole files, in order of precedence."""


def _from_files(paths: Sequence[Path], by_person: bool) -> ApiServer:
    configs = [_Entry(_read(path), path) for path in paths]
    where = f"kubeconfig {os.pathsep.join(map(str, paths))}"
    current = next((name for each in configs if (name := each.values.get("current-context"))), None)
    context = _named(configs, "contexts", "context", current, where).values
    cluster, cluster_file = _named(configs, "clusters", "cluster", context.get("cluster"), where)
    user, user_file = (
        _named(configs, "users", "user", context.get("user"), where) if context.get("user") else _Entry({}, paths[0])
    )
    for kind, entry in (("user", user), ("cluster", cluster)):
        for key in _UNSERVED[kind]:
            if entry.get(key) and not (key == "exec" and by_person):
                raise KubeconfigInvalid(
                    f"{where}: '{key}' is not supported", hint="use a client certificate, a token or a tokenFile"
                )
    url = cluster.get("server")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise KubeconfigInvalid(f"{where}: the cluster has no usable 'server'")
    by_plugin = by_person and isinstance(user.get("exec"), dict)
    given = credential_of_plugin(user["exec"]) if by_plugin else PluginCredentials("")
    return ApiServer(
        url.rstrip("/"),
        _tls(cluster, cluster_file, user, user_file, given) if url.startswith("https://") else None,
        (lambda: given.token) if given.token else _token(user, user_file),
        str(context.get("namespace") or "default"),
        cluster.get("tls-server-name"),
    )


def _text(path: Path, what: str) -> str:
    try:
        return read_bounded(path).decode()
    except UnicodeDecodeError as error:
        raise KubeconfigInvalid(f"cannot read the {what} {path}: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise KubeconfigInvalid(f"cannot read the {what} {path}: {why}") from error


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = load_yaml(_text(path, "kubeconfig"))
    except ValueError as error:
        raise KubeconfigInvalid(f"cannot read the kubeconfig {path}: {error}") from error
    if not isinstance(config, dict):
        raise KubeconfigInvalid(f"kubeconfig {path} is not a mapping")
    return config


def _named(configs: _Configs, group: str, kind: str, name: object, where: str) -> _Entry:
    if not name:
        hint = "choose one: kubectl config use-context NAME" if kind == "context" else ""
        raise KubeconfigInvalid(f"{where} does not specify which {kind} to use", hint=hint)
    for config, file in configs:
        entries = config.get(group)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
                return _Entry(entry[kind], file)
    raise KubeconfigInvalid(f"{where} has no {kind} '{name}'")


def _token(user: Mapping[str, Any], config: Path) -> Callable[[], str] | None:
    if user.get("tokenFile"):
        return _token_file(config.parent / user["tokenFile"])
    if user.get("token"):
        token = str(user["token"])
        return lambda: token
    return None


def _token_file(path: Path) -> Callable[[], str]:
    """Returns a reader that reads the file for each request: the kubelet replaces pods' tokens about once an hour."""

    def read() -> str:
        return _text(path, "token").strip()

    return read


def _tls(
    cluster: Mapping[str, Any], cluster_file: Path, user: Mapping[str, Any], user_file: Path, given: PluginCredentials
) -> ssl.SSLContext:
    try:
        authority = _pem(cluster, "certificate-authority", cluster_file)
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        certificate = given.certificate or _pem(user, "client-certificate", user_file)
        key = given.key or _pem(user, "client-key", user_file)
        if certificate and key:
            _load_client_certificate(tls, certificate, key)
    except (OSError, ValueError) as error:
        files = " and ".join(dict.fromkeys(map(str, (cluster_file, user_file))))
        raise KubeconfigInvalid(f"kubeconfig {files}: its certificates cannot be used: {error}") from error
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
    """OpenSSL takes a certificate only from a file. This one is readable by us alone and is gone when the function returns."""
    with tempfile.NamedTemporaryFile(prefix="tranche-", suffix=".pem") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        tls.load_cert_chain(file.name)


def credential_of_plugin(settings: Mapping[str, Any]) -> PluginCredentials:
    """Run a credential plugin (`users[].user.exec`, as `aws eks get-token`) without interaction. Returns what it gives.

    Raises:
        KubeconfigInvalid: it is missing, fails, or gives no credential.
    """
    command = [str(settings.get("command") or ""), *map(str, settings.get("args") or ())]
    version = str(settings.get("apiVersion") or "client.authentication.k8s.io/v1")
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    extra = {str(each["name"]): str(each["value"]) for each in settings.get("env") or ()}
    environment = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    name = command[0]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PLUGIN_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise KubeconfigInvalid(
            f"cannot run the kubeconfig's credential plugin '{name}': {error}",
            hint=str(settings.get("installHint") or ""),
        ) from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise KubeconfigInvalid(f"the kubeconfig's credential plugin '{name}' failed: {last}")
    try:
        status = json.loads(done.stdout)["status"]
        given = [status.get(key) for key in ("token", "clientCertificateData", "clientKeyData")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubeconfigInvalid(f"the kubeconfig's credential plugin '{name}' returned no credential") from error
    token, certificate, key = (str(each) if each else "" for each in given)
    if not token and not (certificate and key):
        raise KubeconfigInvalid(f"the kubeconfig's credential plugin '{name}' returned no credential")
    return PluginCredentials(token, certificate.encode(), key.encode())
