"""Hold the writes to a topic at every broker while its queues are moved (ordering.md 9.6)."""

from types import TracebackType

from lockstep.admin.client import AdminClient, broker_reasons, gather_results
from lockstep.admin.options import CommandError
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import TopicNotExistError

LEASE_MS = 10_000
"""How long the brokers hold the writes if this command dies."""


class WriteHold:
    """`async with WriteHold(…) as hold`: no broker stores a send to the topic inside the block, as long as `confirm` returns."""

    def __init__(self, admin: AdminClient, topic: str) -> None:
        self.id = admin.host.random.token(8).hex()
        self._admin = admin
        self._topic = topic
        self._held: dict[str, BrokerAddress] = {}

    async def __aenter__(self) -> "WriteHold":
        brokers = {broker.name: broker for broker in await self._admin.brokers() if broker.registered}
        results = await gather_results({name: self._begin(broker) for name, broker in brokers.items()})
        self._held = {name: brokers[name] for name, held in results.values.items() if held}
        if results.failed:
            await self._release()
            raise CommandError(f"nothing was changed: the writes to {self._topic} are not held at {broker_reasons(results.failed)}")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._release()

    async def confirm(self) -> None:
        """Renew the hold. Raise CommandError if a broker has not held the writes all the time, for example because it has restarted."""
        results = await gather_results(
            {name: self._admin.hold_writes(broker, self._topic, self.id, LEASE_MS) for name, broker in self._held.items()}
        )
        lapsed = {name: "it does not hold them any more" for name, begun in results.values.items() if begun} | dict(results.failed)
        if lapsed:
            raise CommandError(f"nothing was changed: the writes to {self._topic} are not held at {broker_reasons(lapsed)}")

    def holds(self, broker: str) -> bool:
        """Return whether this broker holds the writes: every one does that knows the topic."""
        return broker in self._held

    async def _begin(self, broker: BrokerAddress) -> bool:
        try:
            await self._admin.hold_writes(broker, self._topic, self.id, LEASE_MS)
        except TopicNotExistError:
            return False  # it has no queue of the topic either
        return True

    async def _release(self) -> None:
        await gather_results({name: self._admin.hold_writes(broker, self._topic, self.id, 0) for name, broker in self._held.items()})
