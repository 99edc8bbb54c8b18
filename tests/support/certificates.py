"""Certificates for tests, made by an authority of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.server_security import OPEN, ServerSecurity
from lockstep.runtime.security.tls import ClientTls, ServerCertificate, ServerTls, Tls
from support.peers import WIRE


@cache
def authority(name: str = "ours") -> trustme.CA:
    """Return the authority of this name, the same each time: a key takes a tenth of a second."""
    return trustme.CA(organization_name=name, key_type=trustme.KeyType.ECDSA)


def write_authority(path: Path, *names: str) -> str:
    """Write the certificates of authorities into a file, and return its path."""
    path.write_bytes(b"".join(authority(name).cert_pem.bytes() for name in names or ("ours",)))
    return str(path)


def write_certificate(
    directory: Path, *names: str, name: str = "server", by: str = "ours", begins: datetime | None = None, ends: datetime | None = None
) -> tuple[str, str]:
    """Write a certificate for these names (default: 127.0.0.1) and its key, and return both paths."""
    issued = authority(by).issue_cert(*(names or ("127.0.0.1",)), not_before=begins, not_after=ends, key_type=trustme.KeyType.ECDSA)
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.touch(0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    return str(cert), str(key)


def write_self_signed(directory: Path) -> tuple[str, str]:
    """Write a certificate for 127.0.0.1 that has signed itself, and its key, and return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    paths = directory / "self.pem", directory / "self.key"
    paths[0].write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    paths[1].touch(0o600)
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(paths[0]), str(paths[1])


def server_tls(directory: Path, *names: str, client_ca: str | None = None) -> ServerTls:
    """Return the TLS of a server with a new certificate."""
    return ServerTls(ServerCertificate(*write_certificate(directory, *names), client_ca))


def requiring(tls: ServerTls) -> ServerSecurity:
    """Return the security of ports on which TLS is required."""
    return ServerSecurity(tls, lambda _: True)


@contextmanager
def secured_peers(directory: Path, secure: bool) -> Iterator[None]:
    """Let the servers and peers of support.peers use TLS."""
    if secure:
        WIRE.server, WIRE.client = requiring(server_tls(directory)), trusting(directory)
    try:
        yield
    finally:
        WIRE.server, WIRE.client = OPEN, NO_SECURITY


def trusting(directory: Path, by: str = "ours", **settings: Any) -> ClientSecurity:
    """Return the security of a client that trusts one authority. `settings`: the other fields of Tls."""
    path = directory / f"trusted-{by}.pem"
    if not path.exists():
        write_authority(path, by)
    return ClientSecurity(ClientTls(Tls(ca=path, **settings)))
