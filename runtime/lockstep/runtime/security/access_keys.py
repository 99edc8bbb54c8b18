"""AccessKey: RocketMQ's clients sign each request with a secret that they and the server have. RocketMQ: AclClientRPCHook, AclSigner.

    Signature = Base64(HMAC-SHA1(secret, the values of all other fields in the order of their names, then the body))

A value is the text that was sent. Clients do not agree on which fields they sign: those of an option, and those that something adds after
the signature, count with and without. The AccessKey is the name of a user. A signature can be sent again by whoever has read it: without
TLS an AccessKey is a name and no more.

A secret is symmetric: whoever reads it can sign. So the file of users says where it is, and never has it.
"""

import base64
import hmac
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.fields import text_of
from lockstep.runtime.security.watched_files import check_mode, read_line

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
_SOMETIMES = ("_UNIQUE_KEY_QUERY", "SecurityToken")
"""Java before 4.9.4 does not sign the first, Go not the second."""
_ZONE = "__ZONE_"
"""How the fields begin that a client of 5.x adds after the signature."""
SECRET_LENGTH_MIN, SECRET_LENGTH_MAX = 7, 256
"""In characters. RocketMQ: PlainPermissionManager refuses fewer."""
_EXPECTED = 'expected { file = "PATH" } or { env = "NAME" }, or a list of them'


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where a secret is: in the first line of a file, or in a variable of the server's environment."""

    file: str = ""
    """A path; a relative one is beside the file of users. Empty: it is in the environment."""
    variable: str = ""

    @classmethod
    def parse(cls, value: Any) -> "tuple[SecretSource, ...]":
        """Return the sources that the file of users names, none for None. Raise ConfigError, which does not repeat the value."""
        found = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(each, str) for each in found):
            raise ConfigError(f"secret: a secret is not written into this file: {_EXPECTED}")
        sources = []
        for each in found:
            if not isinstance(each, dict) or len(each) != 1 or not each.keys() <= {"file", "env"}:
                raise ConfigError(f"secret: {_EXPECTED}")
            ((kind, place),) = each.items()
            if not isinstance(place, str) or not place:
                raise ConfigError(f"secret: {_EXPECTED}")
            sources.append(cls(file=place) if kind == "file" else cls(variable=place))
        return tuple(sources)

    def path(self, directory: str) -> str:
        """Return the path of the file, from the directory of the file of users."""
        return os.path.join(directory, self.file)

    def read(self, directory: str) -> bytes:
        """Return the secret. Raise ConfigError, which does not show it."""
        if self.file:
            where = self.path(directory)
            secret = read_line(where)
            check_mode(where)
        else:
            where, text = f"the variable {self.variable}", os.environ.get(self.variable)
            if text is None:
                raise ConfigError(f"{where} is not set")
            secret = text.partition("\n")[0].rstrip("\r")
        if not SECRET_LENGTH_MIN <= len(secret) <= SECRET_LENGTH_MAX:
            raise ConfigError(f"{where}: a secret of {len(secret)} characters: expected {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX}")
        try:
            return secret.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{where}: it is not UTF-8") from None


def access_key(fields: Mapping[str, Any]) -> str:
    """Return the AccessKey of a request, or an empty text if it has none."""
    found = fields.get(ACCESS_KEY)
    return "" if found is None else text_of(found)


def is_signed(secrets: Sequence[bytes], fields: Mapping[str, Any], body: bytes | bytearray | memoryview) -> bool:
    """Return whether a request is signed with one of the secrets. `fields` and `body` are those that were sent."""
    given = text_of(fields.get(SIGNATURE, "")).encode()
    for content in _contents(fields):
        for secret in secrets:
            code = hmac.new(secret, content, "sha1")
            code.update(body)
            if hmac.compare_digest(base64.b64encode(code.digest()), given):
                return True
    return False


def _contents(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield what the fields contribute to the signature, in each reading."""
    values = [(name, text_of(fields[name])) for name in sorted(fields) if name != SIGNATURE]
    yield "".join(text for _, text in values).encode()
    optional = dict.fromkeys(kind for name, _ in values if (kind := _kind(name)))
    for left_out in list(product((False, True), repeat=len(optional)))[1:]:
        out = {kind for kind, is_out in zip(optional, left_out, strict=True) if is_out}
        yield "".join(text for name, text in values if _kind(name) not in out).encode()


def _kind(name: str) -> str:
    """Return a word for fields that are signed together or not at all; empty if the field is signed always."""
    return name if name in _SOMETIMES else _ZONE if name.startswith(_ZONE) else ""
