"""The user's API server, found as kubectl finds it, including the credential plugins that clouds use."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tranche.core.errors import KubeconfigInvalid
from tranche.kubernetes.api.kubeconfig import ApiServer, PluginCredentials, find_api_server

_SECONDS = 60.0


def caller_api_server(kubeconfig: str | None, environ: Mapping[str, str], home: Path) -> ApiServer:
    """The API server of the named file, of $KUBECONFIG, of ~/.kube/config, or of the cluster that this pod runs in.

    Raises:
        KubeconfigInvalid: there is none of them, or one cannot be used.
    """
    own = home / ".kube" / "config"
    if not kubeconfig and not environ.get("KUBECONFIG", "").strip(os.pathsep) and own.is_file():
        kubeconfig = str(own)
    return find_api_server(kubeconfig, environ, plugin=credential_of_plugin)


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
            timeout=_SECONDS,
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
