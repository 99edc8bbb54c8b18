"""Contexts of TLS for both ends, and what its errors mean. TLS 1.2 or 1.3, with Python's default ciphers.

Certificates and keys are files in PEM form. Both ends make a new context when the content of a file changes (watched_files.py): a server
looks every 5 s, a client before each connect. Open connections keep the context with which they began.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.watched_files import WatchedFiles, check_mode, read_file

HANDSHAKE_S = 5.0
"""How long a handshake may take at a server."""
CLIENT_HANDSHAKE_S = 10.0
"""How long a client waits for the end of a handshake: all clients of a restarted server shake hands at once."""
SHUTDOWN_S = 2.0
"""How long an end waits for the other one's close of TLS."""
NO_CHECK_TIME = 0x200000
"""OpenSSL: X509_V_FLAG_NO_CHECK_TIME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a client checks the certificates of a cluster's servers, and which one it shows. Every field is a file in PEM form or a name.

    Raises:
        ConfigError: A certificate without its key, or a key without its certificate.
    """

    ca: str | Path | None = None
    """The authorities that the client trusts. None: those of the system."""
    cert: str | Path | None = None
    """The certificate that the client shows, if a server asks for one."""
    key: str | Path | None = None
    """The key of that certificate."""
    server_name: str | None = None
    """The name that the certificates of all servers have to have. None: each has to have the host name or address that is connected to."""

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key", "server_name"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str | Path) and str(value)):
                raise ConfigError(
                    f"Tls({name}={value!r}): expected a name" if name == "server_name" else f"Tls({name}={value!r}): expected a path"
                )
        if (self.cert is None) != (self.key is None):
            raise ConfigError(f"Tls(cert={self.cert!r}, key={self.key!r}): a certificate needs its key, and a key its certificate")

    def paths(self) -> tuple[str, ...]:
        """Return the files of the settings."""
        return tuple(str(path) for path in (self.ca, self.cert, self.key) if path is not None)


class ClientTls:
    """The context with which a client connects."""

    def __init__(self, tls: Tls) -> None:
        """Read the files. Raise ConfigError if they can't be used."""
        self.settings = tls
        self._watched = WatchedFiles(tls.paths(), lambda: client_context(tls))

    def context(self, now_ms: int) -> ssl.SSLContext:
        """Return the context for a connect, from the files as they are now or as they were when they could be used. Blocks."""
        self._watched.look(now_ms)
        return self._watched.value

    def lenient_context(self) -> ssl.SSLContext:
        """Return a context that accepts a certificate of the authorities whatever its names and dates, to see them. Blocks."""
        context = client_context(self.settings)
        context.check_hostname = False
        context.verify_flags = ssl.VerifyFlags(context.verify_flags | NO_CHECK_TIME)
        return context


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The files of a server's certificate."""

    cert: str
    key: str
    client_ca: str | None = None
    """The authorities of clients' certificates. None: a client needs none."""


class ServerTls:
    """The context with which a server accepts connections, made anew when its files change."""

    def __init__(self, files: ServerCertificate) -> None:
        """Read the files. Raise ConfigError if they can't be used."""
        self.files = files
        paths = [files.cert, files.key, *([] if files.client_ca is None else [files.client_ca])]
        self._watched = WatchedFiles(paths, lambda: server_context(files))

    @property
    def context(self) -> ssl.SSLContext:
        """Return the newest context."""
        return self._watched.value

    @property
    def failure(self) -> str | None:
        """Return why the files can't be used, although they have had the time to be replaced; or None."""
        return self._watched.failure

    @property
    def problem(self) -> str | None:
        """Return why the last look could not use the files, or None."""
        return self._watched.problem

    def look(self, now_ms: int) -> tuple[str, ...]:
        """Read the files again. Return those that have changed, or nothing if there is no new context. Blocks."""
        return self._watched.look(now_ms)


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return a new context. Raise ConfigError if a file can't be used. Blocks."""
    if tls.ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, str(tls.ca))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.cert is not None and tls.key is not None:
        _load_pair(context, str(tls.cert), str(tls.key))
    return context


def server_context(files: ServerCertificate) -> ssl.SSLContext:
    """Return a new context. Raise ConfigError if a file can't be used. Blocks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, files.cert, files.key)
    check_mode(files.key)
    if files.client_ca is not None:
        _load_authorities(context, files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    content = read_file(path)
    try:
        context.load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{path} has no certificates in PEM form") from error


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    for path in (cert, key):
        read_file(path)  # for the words of its errors
    try:
        context.load_cert_chain(cert, key, password=lambda: _refuse_passphrase(key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"the key {key} does not belong to the certificate {cert}") from error
        raise ConfigError(f"{cert} and {key}: expected a certificate and its key in PEM form") from error
    except OSError as error:
        raise ConfigError(f"{cert} and {key}: {str(error.strerror).lower()}") from error


def _refuse_passphrase(key: str) -> NoReturn:
    raise ConfigError(f"the key {key} is encrypted: store it without a passphrase, readable by its user alone")


REASONS = {
    "WRONG_VERSION_NUMBER": "the other end does not use TLS on this port",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other end requires a certificate, and this one has none that its authorities have issued",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other end shows no certificate, and one is required",
    "TLSV1_ALERT_UNKNOWN_CA": "the other end does not trust the authority of this end's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other end refuses this end's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other end refuses this end's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other end finds this end's certificate expired",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other end found no way of TLS that both know",
    "UNSUPPORTED_PROTOCOL": "the other end offers only versions of TLS before 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other end offers only other versions of TLS",
    "NO_SHARED_CIPHER": "both ends know no common cipher",
}
"""OpenSSL's reason of an error → what it means."""
SELF_SIGNED, SELF_SIGNED_IN_CHAIN, UNKNOWN_ISSUER = 18, 19, 20
NOT_YET_VALID, EXPIRED, WRONG_NAME, WRONG_ADDRESS = 9, 10, 62, 64
"""Results of OpenSSL's verification: X509_V_ERR_…"""


def tls_reason(error: ssl.SSLError) -> str:
    """Return what an error of TLS means, without OpenSSL's own words where they are known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_reason(error.verify_code, error.verify_message)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the other end closed the connection during the handshake of TLS"
    return REASONS.get(error.reason or "", f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}")


def certificate_reason(code: int, words: str, certificate: Mapping[str, Any] | None = None, now: str | None = None) -> str:
    """Return why a certificate was refused.

    `code` and `words` are the result of the verification. `certificate`: what the certificate says, as `getpeercert` returns it, and `now`:
    the time of this machine, if they are known.
    """
    says = certificate or {}
    clock = "" if now is None else f" (the clock of this machine says {now})"
    if code == EXPIRED:
        return f"the certificate has expired: {says.get('notAfter', 'its end is not known')}{clock}"
    if code == NOT_YET_VALID:
        return f"the certificate is not valid yet: {says.get('notBefore', 'its begin is not known')}{clock}"
    if code in (WRONG_NAME, WRONG_ADDRESS):
        names = ", ".join(str(name) for _, name in says.get("subjectAltName", ()))
        return f"the certificate is for another name{f': it has {names}' if names else ''}"
    if code == SELF_SIGNED:
        return "the certificate is self-signed, and not one of the trusted ones"
    if code in (SELF_SIGNED_IN_CHAIN, UNKNOWN_ISSUER):
        return "the certificate is from an authority that is not trusted"
    return f"the certificate is refused: {words}"
