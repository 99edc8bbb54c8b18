"""Signs requests as RocketMQ's clients do, by hand: it shares no code with the product."""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.logins import NO_RULES, PASSWORD, write_users

SECRET = "a secret of billing"


def signed(
    fields: Mapping[str, Any], body: bytes = b"", key: str = "billing", secret: str = SECRET, *, without: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the fields with AccessKey and Signature. `without`: fields that are sent and not signed."""
    all_fields = {**fields, "AccessKey": key}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in all_fields.items()}
    content = "".join(texts[name] for name in sorted(texts) if name not in without).encode() + body
    return {**all_fields, "Signature": base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha1).digest()).decode()}


def write_signers(path: Path, secrets: Mapping[str, str], rules: Mapping[str, str] = NO_RULES, **networks: list[str]) -> str:
    """Write a file of users who have a password and a secret, and the files of the secrets beside it. Return its path."""
    for name, secret in secrets.items():
        file = path.parent / f"{name}.secret"
        file.touch(0o600)
        file.write_text(f"{secret}\n")
    tables = {name: f'secret = {{ file = "{name}.secret" }}\n{rules.get(name, "super = true")}' for name in secrets}
    return write_users(path, {name: [PASSWORD] for name in secrets}, tables, **networks)
