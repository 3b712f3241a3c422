"""Which certificates the API server is to trust: those of all replicas, and none that is of no use any more.

Each replica adds its own to what the others have written, so no key is shared and no replica needs another one.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)
_EACH, _ALL = 2, 16
"""Of one replica the certificate that serves and the next; of all, with room for those of an upgrade."""


@dataclass(frozen=True, slots=True)
class _TrustedCertificate:
    """One certificate as PEM, whom it was made out to, and from and until when it is valid, in seconds since 1970."""

    pem: str
    name: str
    begins: float
    ends: float


def read_bundle(pem: str) -> tuple[_TrustedCertificate, ...]:
    """The certificates in a text, in its order; what is none is passed over."""
    return tuple(found for block in _BLOCK.findall(pem) if (found := _read(block)) is not None)


def bundle_with(pem: str, own: Iterable[str], now: float) -> str:
    """The text with the certificates `own`, without any that has ended at `now`, and without the oldest of too many.

    What stands in it already keeps its place, so that nothing is written when nothing has to be.
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
