"""The addresses of one register, asked in turn: the one that answered last first, within CALL_S in all."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from lockstep.broker.office.register import RegisterError, RegisterUnknownError, RegisterUnreachableError
from lockstep.protocol.errors import BrokerError, ConfigError, RemoteProtocolError, TransportError, without_frames

CALL_S = 1.0
"""How long a call of a register takes at most."""

T = TypeVar("T")


class NotDoneError(RegisterError):
    """One address has certainly not done what was asked, and will not."""


class UnclearError(RegisterError):
    """The answer of one address does not say whether it has done what was asked."""


class Attempt:
    """One address that is asked. It has a share of the time until the request is sent, and then, if it may change something, all of it."""

    def __init__(self, address: str, limit: asyncio.Timeout, sent_until: float) -> None:
        self.address = address
        self.is_sent = False
        self._limit = limit
        self._sent_until = sent_until

    def sending(self) -> None:
        """Call this before the first byte of the request is sent."""
        self.is_sent = True
        self._limit.reschedule(self._sent_until)


Ask = Callable[[Attempt], Awaitable[T]]
"""Asks one address. Raises TransportError, NotDoneError, UnclearError, ConfigError for a file, BrokerError, or RemoteProtocolError."""


class Endpoints:
    """The addresses of one register."""

    def __init__(self, what: str, addresses: Sequence[str], unconnected: str = "no connection") -> None:
        """`what` names the register in errors. `unconnected` is what could not be had in time if nothing was sent."""
        self._what = what
        self._unconnected = unconnected
        self._order = list(addresses)

    async def read(self, ask: Ask[T]) -> T:
        """Return what the first address that answers has returned. Raise RegisterUnreachableError if none does."""
        return await self._in_turn(ask, may_repeat=True)

    async def change(self, ask: Ask[T]) -> T:
        """Do the same for a request that is sent to one address only.

        Raise RegisterUnknownError if that has not answered, and RegisterUnreachableError if nothing was sent or done.
        """
        return await self._in_turn(ask, may_repeat=False)

    async def _in_turn(self, ask: Ask[T], *, may_repeat: bool) -> T:
        loop = asyncio.get_running_loop()
        end = loop.time() + CALL_S
        reasons: list[str] = []
        order = tuple(self._order)
        for number, address in enumerate(order):
            until = loop.time() + (end - loop.time()) / (len(order) - number)
            limit = asyncio.timeout_at(until)
            attempt = Attempt(address, limit, until if may_repeat else end)
            try:
                async with limit:
                    found = await ask(attempt)
            except (TransportError, NotDoneError, UnclearError, BrokerError, RemoteProtocolError, ConfigError, TimeoutError) as error:
                late = "no answer" if attempt.is_sent else self._unconnected
                reason = f"{address}: {late} in time" if type(error) is TimeoutError else str(error)
                if attempt.is_sent and not may_repeat and not isinstance(error, NotDoneError):
                    raise RegisterUnknownError(f"{self._what}: {reason}; it may have done what was asked") from without_frames(error)
                reasons.append(reason)
                continue
            self._order.remove(address)
            self._order.insert(0, address)
            return found
        raise RegisterUnreachableError(f"{self._what}: {'; '.join(reasons)}")
