"""SCRAM-SHA-256 (RFC 5802, RFC 7677), both ends, without I/O, random numbers or clocks.

    client                                             server
    n,,n=USER,r=CNONCE                    ──────▶      looks USER up
                                          ◀──────      r=CNONCE+SNONCE,s=SALT,i=ITERATIONS
    c=biws,r=CNONCE+SNONCE,p=PROOF        ──────▶      checks the proof against the stored key
    checks the signature                  ◀──────      v=SIGNATURE

The server never has the password, and the client learns whether the server has the user's verifier. Channel binding (-PLUS) is not there:
Python gives no `tls-server-end-point`.

A user may have several verifiers while a password is changed. All have one salt and one number of iterations, because the server has to
name them before it knows which password the client has.
"""

import base64
import binascii
import hashlib
import hmac
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from lockstep.protocol.errors import AuthenticationError, ConfigError, RemoteProtocolError

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 15_000
ITERATIONS_MIN = 4_096
"""RFC 7677. With fewer, who pretends to be a server could find the password from a proof."""
ITERATIONS_MAX = 1_000_000
"""With more, who pretends to be a server would keep the client busy."""
SALT_BYTES = 16
PASSWORD_LENGTH_MIN, PASSWORD_LENGTH_MAX = 8, 256
USER_LENGTH_MAX = 127
MESSAGE_BYTES_MAX = 4_096
_NONCE = re.compile(r"[!-+\--~]{16,256}")
"""Printable ASCII without the comma."""


def prepare_password(password: str) -> bytes:
    """Return the bytes of a password: NFKC, UTF-8. Raise ConfigError if it is too short or too long."""
    text = unicodedata.normalize("NFKC", password)
    if not PASSWORD_LENGTH_MIN <= len(text) <= PASSWORD_LENGTH_MAX:
        raise ConfigError(f"a password of {len(text)} characters: expected {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("a password that is no text: it has a lone surrogate") from error


def salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    """Return the key of a password, from which proof and signature are made. Takes milliseconds."""
    return hashlib.pbkdf2_hmac("sha256", prepare_password(password), salt, iterations)


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server has of a password. Its text is that of PostgreSQL: SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> Self:
        """Make the verifier of a password. Raise ConfigError if that is too short or too long."""
        salted = salted_password(password, salt, iterations)
        return cls(salt, iterations, _sha(_hmac(salted, b"Client Key")), _hmac(salted, b"Server Key"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text. Raise ConfigError, which does not repeat it."""
        found = re.fullmatch(r"SCRAM-SHA-256\$([0-9]{1,7}):([^$:]+)\$([^$:]+):([^$:]+)", text)
        try:
            if found is None:
                raise ValueError
            salt, stored, server = (_decoded(part) for part in found.groups()[1:])
            iterations = int(found[1])
        except ValueError:
            raise ConfigError("is not a verifier: expected SCRAM-SHA-256$… as `lockstep user` writes it") from None
        if not (ITERATIONS_MIN <= iterations <= ITERATIONS_MAX and len(stored) == len(server) == 32 and salt):
            raise ConfigError(f"is not a verifier: expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations and keys of 32 bytes")
        return cls(salt, iterations, stored, server)

    def __str__(self) -> str:
        salt, stored, server = (base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored}:{server}"

    def __repr__(self) -> str:
        return "Verifier(…)"


@dataclass(frozen=True, slots=True)
class Challenge:
    """What the server's first message asks for."""

    salt: bytes
    iterations: int


class ClientLogin:
    """The client's end of one login: `first`, then `challenge` with the response, `final`, and `check` with the last response."""

    def __init__(self, user: str, nonce: str) -> None:
        """`nonce`: unpredictable printable characters without a comma, at least 16."""
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._nonce = nonce
        self._server_first = ""
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def challenge(self, server_first: bytes) -> Challenge:
        """Raise AuthenticationError if the server asks for something that no server of ours asks for."""
        fields = _fields(server_first, "rsi")
        if not fields["r"].startswith(self._nonce) or len(fields["r"]) <= len(self._nonce):
            raise AuthenticationError("the server did not continue the login that this client began")
        salt, iterations = _decoded_field(fields["s"]), int(fields["i"]) if re.fullmatch(r"[0-9]{1,10}", fields["i"]) else 0
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationError(f"the server asks for {iterations} iterations: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}")
        self._server_first = server_first.decode()
        return Challenge(salt, iterations)

    def final(self, salted: bytes) -> bytes:
        """Return the message with the proof. `salted`: the salted password for the challenge."""
        without_proof = f"c=biws,r={_fields(self._server_first.encode(), 'rsi')['r']}"
        signed = ",".join((self._bare, self._server_first, without_proof)).encode()
        client_key = _hmac(salted, b"Client Key")
        proof = _xor(client_key, _hmac(_sha(client_key), signed))
        self._signature = _hmac(_hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise AuthenticationError unless the server has shown that it has the verifier."""
        if not hmac.compare_digest(_decoded_field(_fields(server_final, "v")["v"]), self._signature):
            raise AuthenticationError("the server does not know this user's password: it may be another server that pretends to be it")


class ServerLogin:
    """The server's end of one login: `first`, then `final`."""

    def __init__(self, nonce: str) -> None:
        self.user = ""
        """The user that the client has named."""
        self._nonce = nonce
        self._client_bare = self._server_first = ""
        self._verifiers: Sequence[Verifier] = ()

    @staticmethod
    def user_of(client_first: bytes) -> str:
        """Return the user of a client's first message. Raise RemoteProtocolError."""
        fields = _fields(_after_header(client_first), "nr")
        name = fields["n"]
        if re.search(r"=(?!2C|3D)", name) or not name:
            raise RemoteProtocolError("login: the name of the user is not encoded as RFC 5802 has it")
        return name.replace("=2C", ",").replace("=3D", "=")

    def first(self, client_first: bytes, verifiers: Sequence[Verifier]) -> bytes:
        """Return the server's first message. `verifiers`: those of the user, or one that was made up. Raise RemoteProtocolError."""
        self.user = self.user_of(client_first)
        bare = _after_header(client_first)
        client_nonce = _fields(bare, "nr")["r"]
        if not _NONCE.fullmatch(client_nonce):
            raise RemoteProtocolError("login: the nonce of the client is not 16 to 256 printable characters")
        self._verifiers = verifiers
        self._client_bare = bare.decode()
        salt = base64.b64encode(verifiers[0].salt).decode()
        self._server_first = f"r={client_nonce}{self._nonce},s={salt},i={verifiers[0].iterations}"
        return self._server_first.encode()

    def final(self, client_final: bytes) -> tuple[Verifier, bytes] | None:
        """Return the verifier of the client's password, and the last message; None if the password is wrong. Raise RemoteProtocolError."""
        fields = _fields(client_final, "crp")
        without_proof = client_final.decode().rpartition(",p=")[0]
        if fields["c"] != "biws" or fields["r"] != _fields(self._server_first.encode(), "rsi")["r"]:
            raise RemoteProtocolError("login: the last message does not continue this login")
        proof = _decoded_field(fields["p"])
        signed = ",".join((self._client_bare, self._server_first, without_proof)).encode()
        found: tuple[Verifier, bytes] | None = None
        for verifier in self._verifiers:
            client_key = _xor(proof, _hmac(verifier.stored_key, signed)) if len(proof) == 32 else b""
            if hmac.compare_digest(_sha(client_key), verifier.stored_key):
                found = verifier, f"v={base64.b64encode(_hmac(verifier.server_key, signed)).decode()}".encode()
        return found


def made_up_verifier(key: bytes, user: str) -> Verifier:
    """Return a verifier that no password has, the same each time, so that an unknown user looks as a known one does."""
    salt = _hmac(key, b"salt" + user.encode("utf-8", "surrogatepass"))[:SALT_BYTES]
    return Verifier(salt, ITERATIONS, bytes(32), bytes(32))


def _after_header(client_first: bytes) -> bytes:
    if not client_first.startswith(b"n,,"):
        raise RemoteProtocolError("login: expected a first message of SCRAM-SHA-256 without channel binding (n,,)")
    return client_first[3:]


def _fields(message: bytes, names: str) -> dict[str, str]:
    """Return the attributes of a message, which has to have these, in this order. Raise RemoteProtocolError."""
    try:
        if len(message) > MESSAGE_BYTES_MAX:
            raise ValueError
        parts = message.decode().split(",")
        found = {part[0]: part[2:] for part in parts if part[1:2] == "="}
        if "".join(part[:1] for part in parts[: len(names)]) != names or len(found) != len(parts):
            raise ValueError
    except (ValueError, IndexError):
        raise RemoteProtocolError(f"login: expected a message of SCRAM-SHA-256 with the attributes {', '.join(names)}") from None
    return found


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _decoded_field(text: str) -> bytes:
    try:
        return _decoded(text)
    except (ValueError, binascii.Error):
        raise RemoteProtocolError("login: an attribute is not base64") from None


def _sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
