"""A pull processor over a store in memory, run turn by turn."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from lockstep.broker.groups.parking import Parking
from lockstep.broker.groups.pull_fence import PullCheck
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.park_table import ParkFilter, ParkTable
from lockstep.broker.journal import Journal
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.bodies import ParkedKey, Subscription
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.requests.dispatch import Dispatcher
from support.broker_fakes import FakeEndpoint, FakeHost, FakeStore, request

LONG = {"sys_flag": SUBSCRIPTION | SUSPEND, "suspend_timeout_millis": 15_000}


@dataclass
class FakeCoordination:
    """A fake of the parts of Coordination that a pull uses."""

    checks: dict[int | None, PullCheck] = field(default_factory=dict)
    """The results of `check` by the epoch of the pull."""
    subscriptions: dict[tuple[str, str], Subscription] = field(default_factory=dict)
    commits: list[tuple[str, int, int]] = field(default_factory=list)
    refusal: Exception | None = None

    def __post_init__(self) -> None:
        self.pulls = self.membership = self.legacy = self.parking = self
        self.parks = ParkTable(Journal())
        self._state = self
        self.any_parked = True

    def admit(self, connection: int, key: QueueKey, epoch: int | None, generation: int | None = None, offset: int = 0) -> PullCheck:
        return self.checks.get(epoch, PullCheck(may_commit=epoch is None))

    def subscription(self, group: str, topic: str, connection: int | None = None) -> Subscription | None:
        return self.subscriptions.get((group, topic))

    def filter(self, queue: QueueKey) -> ParkFilter | None:
        return self.parks.filter(queue)

    def rows(self, queue: QueueKey) -> list[ParkedKey]:
        return self.parks.rows(queue)

    def note_passed(self, queue: QueueKey, hidden: ParkFilter | None, end: int) -> bool:
        return Parking.note_passed(self, queue, hidden, end)  # type: ignore[arg-type]

    def update_offset(self, connection: int, key: QueueKey, offset: int, now_ms: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.commits.append((key[0], key[2], offset))


class Broker:
    def __init__(self, **sums: int) -> None:
        self.host = FakeHost()
        self.tasks = Tasks()
        self.store = FakeStore()
        self.topics = TopicTable(LayoutTable(), Journal(), "broker-a")
        self.topics.create(TopicLayout("t", LayoutVersion(1, 7), (LayoutEntry("broker-a", 4, 4, 1),)))
        self.coordination = FakeCoordination()
        quotas = UserQuotas(None, self.host.clock)
        self.pulls = PullProcessor(self.host, self.tasks, self.store, self.topics, self.coordination, quotas=quotas, **sums)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher([self.pulls])
        self.endpoint = FakeEndpoint()

    def pull(self, offset: int = 0, *, endpoint: FakeEndpoint | None = None, opaque: int = 1, **header: object) -> None:
        known: dict[str, object] = {"consumer_group": "g", "topic": "t", "queue_id": 0, "queue_offset": offset, "sys_flag": SUBSCRIPTION}
        command = request(RequestCode.PULL_MESSAGE, PullHeader(**{**known, **header}), opaque=opaque)  # type: ignore[arg-type]
        self.dispatcher(command, endpoint or self.endpoint)  # type: ignore[arg-type]

    async def response(self) -> Command:
        await turn()
        (response,) = self.endpoint.take()
        return response

    async def pulled(self, offset: int = 0, **header: Any) -> Command:
        """Return the response to a pull."""
        self.pull(offset, **header)
        return await self.response()

    def arrive(self, *bodies: bytes, queue_id: int = 0, tag: str | None = None) -> None:
        self.store.append("t", queue_id, list(bodies), tags=[tag] * len(bodies))
        self.pulls.arrived("t", queue_id)


async def turn() -> None:
    """Run all callbacks that are due in this turn and all that they schedule."""
    for _ in range(4):
        await asyncio.sleep(0)
