"""The register of `lockstep witness`."""

from typing import Any

from lockstep.broker.office.endpoints import CALL_S, Attempt, Endpoints, NotDoneError, UnclearError
from lockstep.broker.office.register import Entry, RegisterEntryError, Version
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.register import RegisterReadHeader, RegisterReadReply, RegisterSwapHeader, RegisterSwapReply
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import ClientSecurity

NOT_DONE = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.UNAUTHENTICATED,
    }
)
"""Refusals of a request before it is carried out."""
REQUEST_MS = int(2 * CALL_S * 1_000)
"""Longer than an attempt: its limit is the one that ends a call, and says so."""


class WitnessRegister:
    """The register of one broker name at a witness."""

    def __init__(self, host: Host, address: str, cluster: str, broker_name: str, security: ClientSecurity) -> None:
        self._host = host
        self._address = address
        self._cluster = cluster
        self._broker_name = broker_name
        self._security = security
        self._what = f"witness of broker {broker_name}"
        late = "no connection" if security.credentials is None else "no login (a wrong user or password is answered late)"
        self._endpoints = Endpoints(self._what, [address], late)
        self._endpoint: Endpoint | None = None

    async def read(self) -> tuple[Entry | None, Version]:
        stored, version = await self._endpoints.read(self._read)
        try:
            return None if version == 0 else Entry.from_json(stored), version
        except RegisterEntryError as error:
            raise RegisterEntryError(f"{self._what}: {error}") from None

    async def swap(self, version: Version, entry: Entry) -> bool:
        header, stored = RegisterSwapHeader(self._cluster, self._broker_name, version), entry.to_json()

        async def ask(attempt: Attempt) -> bool:
            response = await self._request(attempt, RequestCode.REGISTER_SWAP, to_plain(header), stored)
            return from_plain(RegisterSwapReply, response.fields).swapped

        return await self._endpoints.change(ask)

    async def close(self) -> None:
        self._drop(self._endpoint, "closed")

    async def _read(self, attempt: Attempt) -> tuple[bytes, Version]:
        header = RegisterReadHeader(self._cluster, self._broker_name)
        response = await self._request(attempt, RequestCode.REGISTER_READ, to_plain(header))
        return bytes(response.body), from_plain(RegisterReadReply, response.fields).version

    async def _request(self, attempt: Attempt, code: RequestCode, fields: dict[str, Any], body: bytes = b"") -> Command:
        endpoint = await self._connected()
        attempt.sending()
        try:
            response = await endpoint.request(code, fields, body, timeout_ms=REQUEST_MS)
        except BaseException:  # re-raised
            self._drop(endpoint, "no answer")
            raise
        try:
            return checked(response)
        except BrokerError as error:
            said = f"{self._address}: {error}"
            raise NotDoneError(said) if response.code in NOT_DONE else UnclearError(said) from None

    async def _connected(self) -> Endpoint:
        if self._endpoint is not None and not self._endpoint.closed:
            return self._endpoint
        endpoint = await connect(self._host, self._address, security=self._security, timeout_ms=REQUEST_MS)
        self._drop(self._endpoint, "another connection is used")
        self._endpoint = endpoint
        return endpoint

    def _drop(self, endpoint: Endpoint | None, reason: str) -> None:
        if endpoint is not None:
            endpoint.abort(reason)
        if self._endpoint is endpoint:
            self._endpoint = None
