"""Hold the writes to a topic at every broker while its queues are moved (ordering.md 9.6)."""

from collections.abc import Collection, Mapping
from types import TracebackType

from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results, without_address
from lockstep.operations.errors import OperationError
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import TopicNotExistError

LEASE_MS = 10_000
"""How long the brokers hold the writes if this command dies."""


class NotHeldError(OperationError):
    """Nothing was changed: a broker does not hold the writes, or has not held them all the time."""


class WriteHold:
    """`async with WriteHold(…) as hold`: no broker stores a send to the topic inside the block, as long as `confirm` returns.

    The brokers that hold the writes are all that are registered and know the topic, and `owners`, registered or not: the brokers with
    queues of the topic.
    """

    def __init__(self, admin: AdminClient, topic: str, owners: Collection[str] = ()) -> None:
        self.id = admin.host.random.token(8).hex()
        self.brokers: dict[str, BrokerAddress] = {}
        """The brokers that hold the writes, by name."""
        self._admin = admin
        self._topic = topic
        self._owners = frozenset(owners)

    async def __aenter__(self) -> "WriteHold":
        """Begin the hold. Raise NotHeldError, without a hold, if a broker can't be reached, does not know its topic, or holds the writes
        for another command."""
        known = by_name(await self._admin.brokers())
        asked = {name: broker for name, broker in known.items() if broker.registered or name in self._owners}
        results = await gather_results({name: self._begin(broker) for name, broker in asked.items()})
        self.brokers = {name: asked[name] for name, held in results.values.items() if held}
        ignorant = {name: "it does not know the topic" for name, held in results.values.items() if name in self._owners and not held}
        failed = {**results.failed, **ignorant, **without_address(sorted(self._owners), known)}
        if failed:
            await self._release()
            raise self._not_held(failed)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._release()

    async def confirm(self) -> None:
        """Renew the hold. Raise NotHeldError if a broker has not held the writes all the time, for example because it has restarted."""
        lapsed, failed = await self.renew()
        if lapsed or failed:
            raise self._not_held({**dict.fromkeys(lapsed, "it does not hold them any more"), **failed})

    async def renew(self) -> tuple[list[str], Mapping[str, str]]:
        """Renew the hold. Return the brokers where it had lapsed and begins again, and those that did not respond, each with its reason."""
        results = await gather_results(
            {name: self._admin.hold_writes(broker, self._topic, self.id, LEASE_MS) for name, broker in self.brokers.items()}
        )
        return [name for name, begun in results.values.items() if begun], results.failed

    def _not_held(self, reasons: Mapping[str, str]) -> NotHeldError:
        return NotHeldError(f"nothing was changed: the writes to {self._topic} are not held at {broker_reasons(reasons)}")

    async def _begin(self, broker: BrokerAddress) -> bool:
        try:
            await self._admin.hold_writes(broker, self._topic, self.id, LEASE_MS)
        except TopicNotExistError:
            return False  # it has no queue of the topic either
        return True

    async def _release(self) -> None:
        await gather_results({name: self._admin.hold_writes(broker, self._topic, self.id, 0) for name, broker in self.brokers.items()})
