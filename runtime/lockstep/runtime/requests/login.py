"""AUTHENTICATE: a client logs in once on each connection (runtime/security/scram.py). Until then nothing else is served. RocketMQ's clients
sign each request instead (runtime/security/access_keys.py): the user is that of the request, and a connection may have several.

A connection without a login or a signature may send GUEST_REQUESTS_MAX requests in frames of GUEST_BYTES_MAX, and has LOGIN_S. A longer
frame is read if its header names the AccessKey of a user, and all such frames together have LONG_BYTES_MAX. A login that fails gets its
response FAILED_S later. Another one of the same address or user is not delayed by that: behind one address there may be many clients.
Checking a proof costs two HMACs, so failures need no other limit. A signature costs 2 µs, and half a millisecond for a MiB of the body,
which is less than it costs to store it.

With `users_optional` a client may work without a login, too, and do everything: it is for the time in which clients get their passwords.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from lockstep.protocol.bodies import BrokerSettings, UserLogin
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import MSGPACK, Command
from lockstep.protocol.errors import AuthenticationError, LocalProtocolError, RequestCodeNotSupportedError
from lockstep.protocol.headers.clients import AuthenticateHeader
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.listen_address import is_loopback
from lockstep.runtime.host import Host
from lockstep.runtime.limits import REQUEST_BYTES_MAX
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.audit import RequestAudit
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import ANY_USER
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, Request
from lockstep.runtime.security.access_keys import access_key
from lockstep.runtime.security.authenticated_user import ANYBODY, AuthenticatedUser, LoginRefusedError, RequestUser
from lockstep.runtime.security.scram import MECHANISM, MESSAGE_BYTES_MAX, ServerLogin
from lockstep.runtime.security.server_security import ServerSecurity

log = get_logger("runtime.login")

LOGIN_S = 10.0
GUEST_BYTES_MAX = REQUEST_BYTES_MAX + 8 * 1024
"""The longest frame: the body of an ordinary request, and its header."""
GUEST_REQUESTS_MAX = 4
LONG_BYTES_MAX = 64 * 1024 * 1024
"""The longer frames of all connections without a valid signature, by the sizes that they claim: 16 of the largest messages."""
FAILED_S = 1.0


_NO_LOGIN = "this server requires a login: give the client a user and a password"
_NO_SIGNATURE = "this server requires signed requests: give the client an AccessKey and its secret"


@dataclass(slots=True)
class _Guest:
    """A connection on which nobody has logged in or signed a request."""

    endpoint: Endpoint
    deadline: asyncio.TimerHandle | None
    requests: int = 0
    login: ServerLogin | None = None
    """The login that has begun."""
    long_bytes: int = 0
    """The size of a longer frame that is being read."""


class LoginProcessor:
    """Serves logins, and admits the requests of who has logged in or signs them. Give `connected` to Server and `admit` to Dispatcher."""

    def __init__(self, host: Host, security: ServerSecurity, audit: RequestAudit) -> None:
        self._host = host
        self._audit = audit
        self._security = security
        self._users = security.users
        self._optional = security.users_optional
        self._guests: dict[int, _Guest] = {}
        """By Endpoint.id."""
        self._connections: dict[str, set[int]] = {}
        """User → the connections on which the user has logged in or signed a request."""
        self._last: dict[tuple[str, bool, bool], tuple[int, str]] = {}
        """The user, and whether the login was signed and exposed, as UserLogin has it → when and from where the last such one was."""

    @property
    def awaited_count(self) -> int:
        """Return the number of connections on which a login is awaited."""
        return 0 if self._optional else len(self._guests)

    @property
    def gate(self) -> Callable[[Command, Endpoint], RequestUser] | None:
        """Return `admit`, or None if there are no users."""
        return None if self._users is None else self.admit

    def report(self, request: Request, settings: BrokerSettings) -> BrokerSettings:
        """Return the settings of this server with what the request asks about users."""
        logins = self._logins() if request.header.logins else None
        user = request.user
        return replace(
            settings,
            users_digest=user.users_digest,
            sees_all=user.sees_all,
            logins=logins,
            reload_failure=self._security.failure,
        )

    def _logins(self) -> tuple[UserLogin, ...]:
        known = () if self._users is None else self._users.value.users
        return tuple(
            UserLogin(user, wall_ms, peer, signed, exposed, len(self._connections.get(user, ())))
            for (user, signed, exposed), (wall_ms, peer) in self._last.items()
            if user in known
        )

    def connected(self, endpoint: Endpoint) -> None:
        """A connection was accepted."""
        if self._users is None:
            return
        deadline = None
        if not self._optional:
            endpoint.limit_frames(GUEST_BYTES_MAX, partial(self._reads_long, endpoint.id))
            reason = f"no login within {LOGIN_S:.0f} s"
            deadline = asyncio.get_running_loop().call_later(LOGIN_S, endpoint.reject, reason)
        self._guests[endpoint.id] = _Guest(endpoint, deadline)
        endpoint.on_close.append(self._left)

    def admit(self, command: Command, endpoint: Endpoint) -> RequestUser:
        """Return the user of a request. Raise AuthenticationError if it needs a login first, or a valid signature."""
        if endpoint.identity is not None:
            return endpoint.identity
        is_native = command.codec == MSGPACK
        name = "" if is_native else access_key(command.fields)
        if name:
            return self._signer(name, command, endpoint)
        if self._optional or command.code == RequestCode.AUTHENTICATE:
            return ANYBODY
        self._count(endpoint)
        raise AuthenticationError(_NO_LOGIN if is_native else _NO_SIGNATURE)

    def _signer(self, name: str, command: Command, endpoint: Endpoint) -> AuthenticatedUser:
        """Return the user who has signed a request. Raise LoginRefusedError if the signature is wrong, or on a connection too many."""
        assert self._users is not None
        users = self._users.value
        if users.is_signed(name, command.fields, command.body, _address(endpoint)):
            refusal = self._enter(name, endpoint, signed=True)
        else:
            refusal = f"the AccessKey or its secret is wrong, or the user may not come from {_address(endpoint)}"
        if refusal is not None:
            user = name if name in users.users else ""
            self._log_failure(user, endpoint)
            self._count(endpoint)
            raise LoginRefusedError(refusal, user)
        if endpoint.is_anonymous:
            self._welcome(endpoint)
        return AuthenticatedUser(name, None, self._users)

    def _reads_long(self, id: int, command: Command, size: int) -> bool:
        """Return whether a long frame is read. If all have too many bytes, the connection with the longest one is closed."""
        guest = self._guests[id]
        if self._users is None or command.codec == MSGPACK or access_key(command.fields) not in self._users.value.secrets:
            return False
        guest.long_bytes = size
        while sum(each.long_bytes for each in self._guests.values()) > LONG_BYTES_MAX:
            longest = max(self._guests.values(), key=lambda each: each.long_bytes)
            longest.long_bytes = 0
            if longest is guest:
                return False
            longest.endpoint.reject(f"frames without a valid signature have more than {LONG_BYTES_MAX} bytes, its own the most")
        return True

    def _count(self, endpoint: Endpoint) -> None:
        """Count a request without a login or a valid signature."""
        guest = self._guests.get(endpoint.id)
        if guest is not None and not self._optional:
            guest.requests += 1
            guest.long_bytes = 0
            if guest.requests > GUEST_REQUESTS_MAX:
                endpoint.reject(f"{guest.requests} requests without a login")

    @handles(RequestCode.AUTHENTICATE, AuthenticateHeader, bytes, needs=ANY_USER, body_bytes_max=MESSAGE_BYTES_MAX, at_once=True)
    def authenticate(self, request: Request) -> HandlerResult:
        header: AuthenticateHeader = request.header
        endpoint, message = request.endpoint, bytes(request.body)
        if self._users is None:
            raise RequestCodeNotSupportedError("this server has no users: it asks for no login")
        if header.mechanism != MECHANISM:
            raise AuthenticationError(f"login by {header.mechanism[:40]!r} is not offered: {MECHANISM} is")
        guest = self._guests.get(endpoint.id)
        if guest is None:
            raise LocalProtocolError("this connection has logged in already")
        users, login, guest.login = self._users.value, guest.login, None
        if login is None:
            guest.login = begun = ServerLogin(self._host.random.token(18).hex())
            return request.reply(body=begun.first(message, users.verifiers(ServerLogin.user_of(message))))
        found = login.final(message)
        address = _address(endpoint)
        if found is None or not users.is_valid(login.user, found[0], address):
            reason = f"the user or the password is wrong, or the user may not log in from {address}"
            return self._refuse(request, login.user if login.user in users.users else "", reason)
        too_many = self._enter(login.user, endpoint, signed=False)
        if too_many is not None:
            return self._refuse(request, login.user, too_many)
        endpoint.identity = AuthenticatedUser(login.user, found[0], self._users)
        self._welcome(endpoint)
        log.debug("login.succeeded", user=login.user, peer=endpoint.peer)
        return request.reply(body=found[1])

    def _refuse(self, request: Request, user: str, reason: str) -> HandlerResult:
        self._log_failure(user, request.endpoint)
        self._audit.login_failed(user, request.endpoint.peer, reason)
        request.audit = None
        asyncio.get_running_loop().call_later(FAILED_S, request.fail, AuthenticationError(reason))
        return NO_RESPONSE

    def _log_failure(self, user: str, endpoint: Endpoint) -> None:
        log_limited(log, "warning", "login.failed", user=user or None, peer=endpoint.peer)

    def _enter(self, user: str, endpoint: Endpoint, *, signed: bool) -> str | None:
        """Note that a user works on a connection. Return why the user may not, or None."""
        assert self._users is not None
        mine = self._connections.setdefault(user, set())
        if endpoint.id in mine:
            return None
        limit = self._users.value.users[user].limits.connections
        if limit is not None and len(mine) >= limit:
            return f"user {user} has {limit} connections to this server, its limit"
        mine.add(endpoint.id)
        endpoint.on_close.append(partial(self._leave, user))
        exposed = not endpoint.is_encrypted and not is_loopback(_address(endpoint).strip("[]"))
        self._last[user, signed, exposed] = self._host.clock.wall_ms(), endpoint.peer
        self._audit.logged_in(user, endpoint.peer)
        return None

    def _leave(self, user: str, endpoint: Endpoint, _reason: str) -> None:
        """A connection on which the user worked is closed."""
        mine = self._connections[user]
        mine.discard(endpoint.id)
        if not mine:
            del self._connections[user]

    def _welcome(self, endpoint: Endpoint) -> None:
        """Take the limits of a guest away."""
        endpoint.is_anonymous = False
        endpoint.limit_frames(None)
        self._left(endpoint, "")

    def _left(self, endpoint: Endpoint, _reason: str) -> None:
        """Somebody has logged in, or the connection is closed."""
        guest = self._guests.pop(endpoint.id, None)
        if guest is not None and guest.deadline is not None:
            guest.deadline.cancel()


def _address(endpoint: Endpoint) -> str:
    return endpoint.peer.rpartition(":")[0]
