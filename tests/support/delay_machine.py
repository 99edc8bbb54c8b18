"""A real store with delayed delivery, on a machine whose clocks the test sets."""

import asyncio
from typing import Any

from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.home_delivery import HomeDelivery
from lockstep.broker.delivery.message_copy import MessageCopy
from lockstep.broker.journal import Journal
from lockstep.broker.tables.delay_table import DelayTable
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.delays import delay_queue_id
from lockstep.protocol.messages.record import RecordView, encode_record, split_records
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.testing.simulation.disk import SimFiles
from support.clocks import SetClock
from support.store_kit import STARTED_MS, Recorded, confirmed, host_of, open_store

LEVELS = (100, 1_000, 60_000, 3_600_000)


class Machine:
    """A machine whose wall clock is `clock.ahead_ms` ahead of the boot clock."""

    def __init__(self) -> None:
        self.clock = SetClock(STARTED_MS)
        self.boots = 1
        self.files = SimFiles()
        self.host = host_of(self.files)
        object.__setattr__(self.host, "clock", self.clock)
        object.__setattr__(self.host, "boot_id", lambda: f"boot-{self.boots}")
        self.topics = TopicTable(LayoutTable(), Journal(), "broker-a")
        self.topics.create(TopicLayout("orders", LayoutVersion(1, 7), (LayoutEntry("broker-a", 4, 4, 1),)))
        self.table = DelayTable(Journal())

    async def start(self, **settings: Any) -> None:
        recorded = Recorded()
        self.store = await open_store(self.files, host=self.host, recorded=recorded, segment_bytes=1 << 20, **settings)
        for ended in recorded.ends:
            self.table.ended(ended.queue_id, ended.offset)
        self.store.record_clock()
        await self.store.sync()
        topics = GroupTopics(self.topics)
        self.home = HomeDelivery(self.store, topics)
        self.delays = DelayedDelivery(self.store, self.table, topics, self.home, LEVELS)

    async def restart(self, *, boots: bool = False) -> None:
        """Kill the broker and restart it. If `boots`, the machine is rebooted too."""
        await self.store.close(clean=False)
        self.boots += boots
        await self.start()

    async def put(self, level: int, body: bytes = b"x") -> None:
        record = encode_record(b"orders", 2, body, b"", born_ms=1)
        self.delays.append(MessageCopy.of(RecordView(record)), level)
        await confirmed(self.store)
        self.delays.on_arrival(delay_queue_id(LEVELS[level - 1]))

    async def pass_ms(self, ms: int, step_ms: int = 1_000) -> int:
        """Advance time with a check every `step_ms`. Return the number of messages that have arrived."""
        end = self.clock.now_ms + ms
        while self.clock.now_ms < end:
            self.clock.now_ms = min(end, self.clock.now_ms + step_ms)
            await self.look()
        return self.store.bounds("orders", 2)[1]

    async def look(self) -> None:
        self.store.follow_clock()
        task = asyncio.ensure_future(self.delays.run())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await confirmed(self.store)

    async def arrived(self) -> list[bytes]:
        """Return the bodies in the order of arrival."""
        first, end = self.store.bounds("orders", 2)
        found: list[bytes] = []
        while first + len(found) < end:
            result = await self.store.read_or_wait("orders", 2, first + len(found), 100, 1 << 20)
            data = b"".join(result.parts)
            found += [RecordView(data, begin).body for begin, _ in split_records(data)]
        return found
