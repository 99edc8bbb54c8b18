"""The register in etcd 3, by its JSON gateway: `/v3/kv/range` and `/v3/kv/txn`.

64-bit numbers are texts there, keys and values base64, and what is false, 0 or empty is absent. An error is JSON with `message` or `error`,
but what the server of HTTP says itself is plain text. Serializable reads are never used: they answer what was.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from lockstep.broker.office.endpoints import Attempt, Endpoints, NotDoneError, UnclearError
from lockstep.broker.office.register import Entry, RegisterEntryError, Version
from lockstep.runtime.connections.http_client import HttpAnswer, HttpClient
from lockstep.runtime.host import Host
from lockstep.runtime.security.tls import ClientTls
from lockstep.runtime.security.watched_files import read_line

RESPONSE_BYTES_MAX = 64 * 1024
"""The maximum of a response: an entry in base64, its key, and room."""
NOT_DONE = frozenset({400, 401, 403, 404, 405, 413, 415, 421, 429})
"""Statuses of requests that were not carried out. Others than these and 200 leave it open: 408, 500, 502, 503, 504."""
RENEW = re.compile(r"invalid auth token|revision (of auth store|in header) is old")
"""The token is not valid any more, or etcd's users have changed since: not carried out, and another token is needed."""
ADVICE = (
    (r"user name is empty", "it requires a login: name a user in the URL, etcd://USER@HOST:PORT/?password_file=FILE"),
    (r"authentication is not enabled", "it has no authentication: leave the user out of the URL, or enable it (`etcdctl auth enable`)"),
    (r"invalid user ID or password", "the user or the password is wrong"),
    (r"permission denied", "the user may not read or write the key: grant it (`etcdctl role grant-permission ROLE readwrite KEY`)"),
    (r"CommonName of client", "with authentication it refuses client certificates that have a CN: make one without, and name a user"),
    (r"bad certificate", "the certificate of etcd itself lacks the usage clientAuth, which its JSON gateway needs"),
    (r"HTTP request to an HTTPS server", "it requires TLS: use etcds://"),
    (r"database space exceeded", "its database is full: compact and defragment it, and disarm the alarm (`etcdctl alarm disarm`)"),
    (r"^404 ", "it has no JSON gateway there: set enable-grpc-gateway: true in its configuration file, give the port of its HTTP "
     "(listen-client-http-urls) if that has one of its own, or start etcd 3.6 or later"),
    (r"^421 ", "its --host-whitelist lacks the host of the URL"),
)  # fmt: skip
"""What the status and the text of an error match → what it means."""


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """Where a register is in etcd, and how to get there."""

    addresses: Sequence[str]
    key: str
    tls: ClientTls | None = None
    user: str | None = None
    password_file: str | None = None

    def __str__(self) -> str:
        return f"etcd key {self.key}"


class EtcdRegister:
    """The register of one key."""

    def __init__(self, host: Host, place: EtcdPlace) -> None:
        self._host = host
        self._place = place
        self._key = _base64(place.key.encode())
        self._endpoints = Endpoints(str(place), place.addresses, "no connection" if place.user is None else "no connection and login")
        self._clients = {
            address: HttpClient(host, address, tls=place.tls, response_bytes_max=RESPONSE_BYTES_MAX) for address in place.addresses
        }
        self._token: str | None = None

    async def read(self) -> tuple[Entry | None, Version]:
        stored, version = await self._endpoints.read(self._read_at)
        try:
            return None if stored is None else Entry.from_json(stored), version
        except RegisterEntryError as error:
            raise RegisterEntryError(f"{self._place}: {error}") from None

    async def swap(self, version: Version, entry: Entry) -> bool:
        compare = {"target": "MOD", "result": "EQUAL", "key": self._key, "mod_revision": str(version)}
        put = {"request_put": {"key": self._key, "value": _base64(entry.to_json())}}
        return await self._endpoints.change(lambda attempt: self._swap_at(attempt, {"compare": [compare], "success": [put]}))

    async def close(self) -> None:
        for client in self._clients.values():
            client.close()

    # ---------------------------------------------------------------------------------------------------------- one address

    async def _read_at(self, attempt: Attempt) -> tuple[bytes | None, Version]:
        found = await self._call(attempt, "/v3/kv/range", {"key": self._key})
        try:
            rows = found.get("kvs", [])
            if not rows:
                return None, 0
            version = int(rows[0]["mod_revision"])
            stored = b64decode(rows[0].get("value", ""), validate=True)
            if version <= 0 or len(stored) > RESPONSE_BYTES_MAX:
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _strange(attempt.address, json.dumps(found)) from None
        return stored, version

    async def _swap_at(self, attempt: Attempt, swap: dict[str, Any]) -> bool:
        done = (await self._call(attempt, "/v3/kv/txn", swap)).get("succeeded", False)
        if not isinstance(done, bool):
            raise _strange(attempt.address, f"succeeded = {done!r}")
        return done

    async def _call(self, attempt: Attempt, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request about the key. Log in first, and again if the token is not valid any more."""
        login = self._place.user is not None
        for last in (False, True):
            if login and self._token is None:
                self._token = await self._authenticate(attempt.address)
            response = await self._send(attempt.address, path, asked, attempt)
            if last or not login or response.status == HTTPStatus.OK or not RENEW.search(_text_of(response)):
                break
            self._token, attempt.is_sent = None, False
        return _checked(attempt.address, response)

    async def _authenticate(self, address: str) -> str:
        """Return a new token. Nothing is changed: without one, nothing was asked about the key."""
        password = ""
        if self._place.password_file is not None:
            password = await self._host.threads.run(read_line, self._place.password_file)
        response = await self._send(address, "/v3/auth/authenticate", {"name": self._place.user, "password": password})
        token = _checked(address, response).get("token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,8192}", token):
            raise NotDoneError(f"{address}: its answer to a login has no token")
        return token

    async def _send(self, address: str, path: str, asked: dict[str, Any], attempt: Attempt | None = None) -> HttpAnswer:
        client = self._clients[address]
        connection = await client.connection()
        fields = {"Content-Type": "application/json"}
        if attempt is not None:
            fields |= {} if self._token is None else {"Authorization": self._token}
            attempt.sending()
        response = await connection.request("POST", path, fields, json.dumps(asked).encode())
        client.keep(connection)
        return response


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _text_of(response: HttpAnswer) -> str:
    """Return the text of an error."""
    text = response.body.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(found, dict):
        text = str(found.get("message") or found.get("error") or text)
    return text


def _checked(address: str, response: HttpAnswer) -> dict[str, Any]:
    """Return the object of an answer. Raise NotDoneError or UnclearError."""
    if response.status == HTTPStatus.OK:
        try:
            found = json.loads(response.body)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and isinstance(found.get("header"), dict):
            return found
        raise _strange(address, response.body.decode("utf-8", "replace"))
    text = _text_of(response)
    answer = f"{response.status} {text}"
    advice = next((advice for pattern, advice in ADVICE if re.search(pattern, answer, re.IGNORECASE)), "")
    said = f"{address}: HTTP {_short(answer)}{f': {advice}' if advice else ''}"
    is_done = response.status not in NOT_DONE and not RENEW.search(text)
    raise UnclearError(said) if is_done else NotDoneError(said)


def _strange(address: str, found: str) -> UnclearError:
    return UnclearError(f"{address}: it does not answer as etcd does: {_short(found)}")


def _short(text: str) -> str:
    """Return a text of the other end for a message."""
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:200]}…"
