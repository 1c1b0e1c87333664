"""From when until when a TLS certificate is good, and what to say when that is soon over.

Invariant: reading only, without any library of ours: by a handshake with ourselves.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME (openssl, x509_vfy.h): an expired one is read as well."""

LAST_SHARE = 0.1
LAST_TIME = timedelta(days=14)
"""What is left of a certificate's life when a person is called: a tenth, and at most 14 days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """The life of a certificate."""

    begins_at: datetime
    ends_at: datetime


def validity(certificate: Path, key: Path) -> Validity:
    """Read the life of a certificate that fits its key.

    Raises:
        ssl.SSLError, OSError: it does not, or cannot be used.
    """
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    # Trusted as it is, whoever issued it.
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(NO_CHECK_TIME)
    asking.load_verify_locations(certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(there, back, server_side=True)
    client = asking.wrap_bio(back, there)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert() or {}
    begins_s, ends_s = (
        ssl.cert_time_to_seconds(str(found[each])) for each in ("notBefore", "notAfter")
    )
    return Validity(
        begins_at=datetime.fromtimestamp(begins_s, UTC), ends_at=datetime.fromtimestamp(ends_s, UTC)
    )


def trouble(certificate: Path, life: Validity, now: datetime) -> str:
    """Say that a certificate is not good now, or not for long; "" while all is well. Pure."""
    last = min(LAST_TIME, LAST_SHARE * (life.ends_at - life.begins_at))
    if life.ends_at - now > last and life.begins_at <= now:
        return ""
    if life.begins_at > now:
        what = f"is good from {life.begins_at:%Y-%m-%d %H:%M} UTC on only, and agents that check it"
        return f"The agents' certificate {certificate} {what} are shut out: see `timedatectl`."
    when = "has ended" if life.ends_at <= now else "ends"
    effect = "are shut out" if life.ends_at <= now else "are shut out then"
    return (
        f"The agents' certificate {certificate} {when} at {life.ends_at:%Y-%m-%d %H:%M} UTC, and "
        f"agents {effect}, which keep what they measure: make it anew, it is taken within minutes."
    )
