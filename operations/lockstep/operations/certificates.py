"""Makes an authority and certificates for the servers of a cluster, as files in PEM form. Needs the package cryptography.

The authority signs certificates of servers, which are also certificates of clients: a broker shows its own to a nameserver. Keys are of the
curve P-256, with which a handshake costs a server least.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lockstep.operations.administrator_files import replace_file
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.watched_files import read_file

AUTHORITY_DAYS = 3_650
HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*")
"""A name of the domain name system, or a wildcard for one label. Containers' names may have an underscore."""
BACKDATED = timedelta(hours=1)
"""Certificates begin before they are made: the clocks of machines differ."""


@dataclass(frozen=True, slots=True)
class MadeCertificate:
    """The files that were written, and what is in the certificate."""

    ca: Path
    ca_key: Path
    cert: Path
    key: Path
    names: tuple[str, ...]
    ends: datetime
    is_new_authority: bool


def make_certificate(directory: Path, server: str, names: Sequence[str], days: int, now_ms: int) -> MadeCertificate:
    """Write `server`.pem and `server`.key into the directory, signed by the authority that is there, or by a new one.

    Raises:
        ConfigError: A name is no host name and no address.
        OperationError: The authority can't be read, or a file can't be written.
    """
    alternatives = [_alternative(name) for name in dict.fromkeys(names)]
    now = datetime.fromtimestamp(now_ms // 1000, UTC)
    ca, ca_key, cert, key = (directory / name for name in ("ca.pem", "ca.key", f"{server}.pem", f"{server}.key"))
    try:
        is_new = not ca.exists() and not ca_key.exists()
        if is_new:
            _write_authority(ca, ca_key, now)
        authority = x509.load_pem_x509_certificate(read_file(str(ca)))
        signing_key = serialization.load_pem_private_key(read_file(str(ca_key)), None)
        if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
            raise OperationError(f"{ca_key}: expected the key of an authority that `lockstep security init` has made")
        own_key = ec.generate_private_key(ec.SECP256R1())
        ends = now + timedelta(days=days)
        made = _builder(server, own_key.public_key(), authority.subject, now, ends)
        made = made.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        _write_key(key, own_key)
        replace_file(cert, made.sign(signing_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)
    except (ValueError, TypeError) as error:
        raise OperationError(f"{ca} or {ca_key} is no certificate or key in PEM form without a passphrase: {error}") from error
    return MadeCertificate(ca, ca_key, cert, key, tuple(dict.fromkeys(names)), ends, is_new)


def _write_authority(ca: Path, ca_key: Path, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("lockstep authority")
    made = _builder("lockstep authority", key.public_key(), subject, now, now + timedelta(days=AUTHORITY_DAYS))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = made.add_extension(usage, critical=True)
    _write_key(ca_key, key)
    replace_file(ca, made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)


def _builder(name: str, key: ec.EllipticCurvePublicKey, issuer: x509.Name, now: datetime, ends: datetime) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder().subject_name(_subject(name)).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - BACKDATED).not_valid_after(ends)
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name.strip("[]")))
    except ValueError:
        pass
    try:
        host = name.encode("idna").decode("ascii")
    except UnicodeError:
        host = ""
    if not HOST_NAME.fullmatch(host):
        raise ConfigError(f"{name[:80]!r} is not a host name or an address")
    return x509.DNSName(host)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form = serialization.PrivateFormat.PKCS8
    replace_file(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()), 0o600)
