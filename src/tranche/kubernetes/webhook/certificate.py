"""A serving certificate that its process makes for itself, with openssl.

Why openssl, and no library: Python's own modules make no certificates, and `cryptography` would be two compiled packages more in
the image for one call every few days. openssl comes with `ca-certificates`, which the image's base has.

The certificate is its own authority, so no key of an authority has to be kept. Its own key never leaves the process but for the
moment in which openssl and Python read it from a folder of the process's own.
"""

from __future__ import annotations

import re
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tranche.core.errors import TlsUnavailable

_SKEW = timedelta(hours=1)
"""By so much may the API server's clock be slow."""
_TIME = "%Y%m%d%H%M%SZ"
_TIMEOUT_SECONDS = 30.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_LONGEST_NAME = 64  # of the subject; addresses may be longer


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate and its private key as PEM, and until when it is valid."""

    certificate: str
    key: str
    expires: datetime

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have the context serve it from the next connection on."""
        with tempfile.TemporaryDirectory(prefix="tranche-tls-") as folder:
            file = Path(folder) / "chain.pem"
            file.write_text(self.key + self.certificate)
            context.load_cert_chain(file)


def make_certificate(name: str, hosts: Sequence[str], now: datetime, lifetime: timedelta) -> ServingCertificate:
    """A certificate for those DNS names, made out to `name`, valid from an hour ago until `lifetime` from `now` (UTC).

    Raises:
        TlsUnavailable: there is no openssl, or it fails.
    """
    for word in (name, *hosts):
        if not _NAME.fullmatch(word):
            raise TlsUnavailable(f"'{word}' cannot stand in a certificate")
    expires = (now + lifetime).replace(microsecond=0)
    with tempfile.TemporaryDirectory(prefix="tranche-tls-") as folder:
        place = Path(folder)
        (place / "index").touch()
        (place / "config").write_text(_config(hosts))
        _openssl(
            place, "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256",
            "-subj", f"/CN={name[-_LONGEST_NAME:]}", "-keyout", "key", "-out", "request", "-config", "config",
        )  # fmt: skip
        _openssl(
            place, "ca", "-batch", "-selfsign", "-notext", "-config", "config", "-keyfile", "key",
            "-in", "request", "-out", "certificate", "-startdate", (now - _SKEW).strftime(_TIME),
            "-enddate", expires.strftime(_TIME),
        )  # fmt: skip
        return ServingCertificate((place / "certificate").read_text(), (place / "key").read_text(), expires)


def _config(hosts: Sequence[str]) -> str:
    names = ",".join(f"DNS:{host}" for host in hosts)
    return f"""\
[req]
distinguished_name = subject
[subject]
[ca]
default_ca = own
[own]
database = index
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = subject_policy
x509_extensions = extensions
[subject_policy]
commonName = supplied
[extensions]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,digitalSignature,keyCertSign
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
subjectAltName = {names}
"""


def _openssl(folder: Path, *words: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *words], cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TlsUnavailable(f"openssl cannot be run: {error}", hint="install the package openssl") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise TlsUnavailable(f"openssl {words[0]} failed: {said}", hint="the controller needs openssl 3.0 or newer")
