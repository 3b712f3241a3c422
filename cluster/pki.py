"""Certificates and kubeconfigs of a cluster, made with openssl."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

_DAYS = "365"


@dataclass(frozen=True, slots=True)
class Pki:
    """A folder of keys and certificates that one authority signs."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that clients and servers trust."""
        return self.folder / "ca.crt"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def create_authority(self) -> None:
        """Make the authority and the key that service account tokens are signed with."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._new_key("ca")
        usage = "keyUsage=critical,keyCertSign,digitalSignature"
        _openssl(
            "req", "-x509", "-new", "-key", self.key("ca"), "-subj", "/CN=tranche-cluster", "-days", _DAYS,
            "-addext", usage, "-out", self.authority,
        )  # fmt: skip
        _openssl("genrsa", "-out", self.key("service-accounts"), "2048")
        _openssl("rsa", "-in", self.key("service-accounts"), "-pubout", "-out", self.folder / "service-accounts.pub")

    def issue_server(self, name: str, names: list[str]) -> None:
        """Make a serving certificate for `names`, each `DNS:...` or `IP:...`."""
        self._issue(name, f"/CN={name}", f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth\n")

    def issue_client(self, name: str, user: str, group: str = "") -> None:
        """Make a client certificate for a user of Kubernetes, in a group if one is given."""
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        self._issue(name, subject, "extendedKeyUsage=clientAuth\n")

    def user(self, client: str) -> dict[str, str]:
        """The credentials of a client certificate, as a kubeconfig has them."""
        return {"client-certificate": str(self.certificate(client)), "client-key": str(self.key(client))}

    def write_kubeconfig(self, path: Path, user: dict[str, str], server: str) -> None:
        """Write a kubeconfig with a user's credentials. It is JSON, which is YAML."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "cluster", "cluster": {"server": server, "certificate-authority": str(self.authority)}}
            ],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
            "current-context": "context",
        }
        path.write_text(json.dumps(config, indent=2) + "\n")
        path.chmod(0o600)

    def _issue(self, name: str, subject: str, extensions: str) -> None:
        self._new_key(name)
        request, wanted = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        wanted.write_text(extensions)
        _openssl("req", "-new", "-key", self.key(name), "-subj", subject, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", self.key("ca"), "-CAcreateserial",
            "-days", _DAYS, "-extfile", wanted, "-out", self.certificate(name),
        )  # fmt: skip
        request.unlink()
        wanted.unlink()

    def _new_key(self, name: str) -> None:
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.key(name))


def _openssl(*arguments: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise ClusterError("there is no openssl to make certificates with", hint="install openssl")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
