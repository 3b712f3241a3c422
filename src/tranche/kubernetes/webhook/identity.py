"""The webhook's identity for the API server: its certificate, made and rotated here, and trusted before it serves.

Why openssl, and no library: Python's own modules make no certificates, and `cryptography` would add two compiled packages to the
image for one call every few days. openssl comes with `ca-certificates`, which the image's base has.

The certificate is its own authority, so there is no authority's key to keep. Its own key leaves the process only while openssl
and Python read it from a folder of the process's own.

Each replica adds its own certificate to those of the others, so no key is shared and no replica needs another one. The API server
should trust the certificates of all replicas, and none that is out of use.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
import ssl
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tranche.core.errors import TlsUnavailable
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json, part
from tranche.kubernetes.api.informer import named
from tranche.kubernetes.api.object_client import ObjectClient
from tranche.kubernetes.component import Readiness

_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """A `MutatingWebhookConfiguration` as the API server has it."""

    raw: Json

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.raw["metadata"]["name"])

    @property
    def version(self) -> str:
        """The version that was read."""
        return str(self.raw["metadata"].get("resourceVersion") or "")

    @property
    def bundle(self) -> str:
        """The trusted certificates, as PEM, from its first webhook; all have the same."""
        first: Json = next(iter(self.raw.get("webhooks") or ()), {})
        try:
            return base64.b64decode(part(first, "clientConfig").get("caBundle") or "").decode("ascii", "replace")
        except (binascii.Error, ValueError):
            return ""

    def with_bundle(self, bundle: str) -> WebhookConfig:
        """The object with other trusted certificates."""
        encoded = base64.b64encode(bundle.encode()).decode()
        webhooks = [
            {**each, "clientConfig": {**(each.get("clientConfig") or {}), "caBundle": encoded}}
            for each in self.raw.get("webhooks") or ()
        ]
        return WebhookConfig({**self.raw, "webhooks": webhooks})


def webhook_configurations(connection: ApiConnection) -> ObjectClient[WebhookConfig]:
    """The webhook configurations of the cluster."""
    return ObjectClient(connection, "MutatingWebhookConfiguration", _PATH, WebhookConfig, lambda each: each.raw)


_SKEW = timedelta(hours=1)
"""How far the API server's clock may be behind."""
_TIME = "%Y%m%d%H%M%SZ"
_TIMEOUT_SECONDS = 30.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_LONGEST_NAME = 64  # of the subject; addresses may be longer


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate and its private key as PEM, and when it expires."""

    certificate: str
    key: str
    expires: datetime

    def load_into(self, context: ssl.SSLContext) -> None:
        """Make the context serve it from the next connection on."""
        with tempfile.TemporaryDirectory(prefix="tranche-tls-") as folder:
            file = Path(folder) / "chain.pem"
            file.write_text(self.key + self.certificate)
            context.load_cert_chain(file)


def make_certificate(name: str, hosts: Sequence[str], now: datetime, lifetime: timedelta) -> ServingCertificate:
    """A certificate for those DNS names, made out to `name`, valid from an hour ago until `lifetime` from `now` (UTC).

    Raises:
        TlsUnavailable: openssl is missing or fails.
    """
    for word in (name, *hosts):
        if not _NAME.fullmatch(word):
            raise TlsUnavailable(f"'{word}' is not allowed in a certificate")
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
        raise TlsUnavailable(f"cannot run openssl: {error}", hint="install the package openssl") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise TlsUnavailable(f"openssl {words[0]} failed: {said}", hint="the controller needs openssl 3.0 or newer")


_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)
_EACH, _ALL = 2, 16
"""For one replica the serving certificate and the next; for all, with room for those of an upgrade."""


@dataclass(frozen=True, slots=True)
class _TrustedCertificate:
    """A certificate as PEM, its name, and its validity, in seconds since 1970."""

    pem: str
    name: str
    begins: float
    ends: float


def read_bundle(pem: str) -> tuple[_TrustedCertificate, ...]:
    """The certificates in a text, in its order; skips anything else."""
    return tuple(found for block in _BLOCK.findall(pem) if (found := _read(block)) is not None)


def bundle_with(pem: str, own: Iterable[str], now: float) -> str:
    """The text with the certificates `own`, without any that has expired at `now`, and without the oldest of too many.

    Certificates already in the text keep their place, so that nothing is written when nothing has to be.
    """
    mine = [each for text in own for each in read_bundle(text)]
    kept: list[_TrustedCertificate] = []
    for each in (*read_bundle(pem), *mine):
        if each.ends > now and all(each.pem != other.pem for other in kept):
            kept.append(each)
    ranked = sorted(kept, key=lambda each: (each in mine, each.begins), reverse=True)
    wanted: list[_TrustedCertificate] = []
    for each in ranked:
        of_one = [other for other in wanted if other.name == each.name]
        if len(wanted) < _ALL and (len(of_one) < _EACH or each in mine):
            wanted.append(each)
    return "".join(f"{each.pem}\n" for each in kept if each in wanted)


def _read(block: str) -> _TrustedCertificate | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=block)
        (found,) = context.get_ca_certs()
        subject: Any = found["subject"]
        names = {str(key): str(value) for pairs in subject for key, value in pairs}
        begins = ssl.cert_time_to_seconds(str(found["notBefore"]))
        ends = ssl.cert_time_to_seconds(str(found["notAfter"]))
    except (ssl.SSLError, ValueError, KeyError):
        return None
    lines = "\n".join(line.strip() for line in block.splitlines() if line.strip())
    return _TrustedCertificate(lines, names.get("commonName", ""), begins, ends)


SETTLE_SECONDS = 2.0
"""How long the API servers of a cluster may take to hear of a certificate that one of them has stored."""

_log = logging.getLogger(__name__)


class WebhookIdentity:
    """Keeps a certificate in `tls`, and keeps the webhook's configuration trusting it, even if others write to it too.

    A new certificate is trusted before it serves, at half of the `lifetime` of the one before it.
    """

    name = "certificate"

    def __init__(
        self,
        configurations: ObjectClient[WebhookConfig],
        name: str,
        tls: ssl.SSLContext,
        replica: str,
        hosts: Sequence[str],
        lifetime: timedelta,
        *,
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`name` is that of the configuration; `now` gives the time in UTC."""
        self._configurations = configurations
        self._name = name
        self._tls = tls
        self._replica = replica
        self._hosts = tuple(hosts)
        self._lifetime = lifetime
        self._now = now
        self._sleep = sleep
        self._wanted: tuple[ServingCertificate, ...] = ()
        self._serving: ServingCertificate | None = None
        self._missing = f"the controller has not read the webhook configuration {name} yet"
        self._trusted = asyncio.Event()

    def ready(self) -> Readiness:
        """Whether the API server can trust what is served."""
        if self._missing:
            return Readiness(False, self._missing)
        if self._serving is None:
            return Readiness(False, "the API servers do not trust the certificate yet")
        return Readiness(True)

    async def prepare(self) -> None:
        """Load a certificate before the port is opened."""
        await self._make()
        self._wanted[-1].load_into(self._tls)

    async def run(self) -> None:
        """Make certificates, have them trusted, and serve them in turn. Restores what others have overwritten."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._rotate())

    async def _rotate(self) -> None:
        if not self._wanted:
            await self._make()
        while True:
            newest = self._wanted[-1]
            await self._publish()
            await self._trusted.wait()
            await self._sleep(SETTLE_SECONDS)
            newest.load_into(self._tls)
            self._serving = newest
            _log.info("serving with a new certificate", extra={"expires": newest.expires.isoformat()})
            left = newest.expires - self._now() - self._lifetime / 2
            await self._sleep(max(left.total_seconds(), 0.0))
            await self._make()

    async def _make(self) -> None:
        made = await asyncio.to_thread(make_certificate, self._replica, self._hosts, self._now(), self._lifetime)
        self._wanted = (*self._wanted[-1:], made)
        self._trusted.clear()

    async def _follow(self) -> None:
        source = self._configurations.source(f"webhook configuration {self._name}", named(self._name))
        async with aclosing(source.versions()) as versions:
            async for found in versions:
                if not self._look(found):
                    await self._publish()

    def _look(self, found: WebhookConfig | None) -> bool:
        """Whether the configuration trusts all that this replica serves and will serve."""
        if found is None:
            self._missing = f"MutatingWebhookConfiguration {self._name} not found"
            return True
        bundle = found.bundle
        lacking = [each for each in self._wanted if each.certificate.strip() not in bundle]
        self._missing = "its certificate is not trusted" if lacking else ""
        if not lacking:
            self._trusted.set()
        return not lacking

    async def _publish(self) -> None:
        """Return once the configuration has the certificates, written here or already there."""
        while (found := await self._configurations.get(self._name)) is not None:
            own = [each.certificate for each in self._wanted]
            bundle = bundle_with(found.bundle, own, self._now().timestamp())
            if bundle == found.bundle or await self._configurations.replace(found.with_bundle(bundle)) is not None:
                return
