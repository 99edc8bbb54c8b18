"""A broadcasting member's file of offsets after a restart, a crash, a power cut, or a cut of its broker's log."""

import errno
from collections import Counter
from collections.abc import Sequence

from lockstep.client import (
    Backoff,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
    OrderedRetry,
    OrderlyContext,
)
from lockstep.client.consumer.grants.local_offsets import SavedProgress
from lockstep.client.consumer.grants.offset_file import OffsetFile
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.layout_publish import publish_layout
from lockstep.runtime.host import Host
from lockstep.testing import simulate
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.broadcast_world import DONE, GROUP, TOPIC, bodies, world


def test_killed_broadcast_member_loses_no_message_and_repeats_at_most_one_second() -> None:
    async def main() -> None:
        async with world() as w:
            at: dict[bytes, list[float]] = {}

            async def work() -> None:
                member = w.bare("one")

                @member.concurrently
                async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                    for message in messages:
                        at.setdefault(message.body, []).append(w.cluster.now)
                    return DONE

                async with member:
                    await member.wait_closed()

            await w.cluster.start("one", work)
            killed: list[float] = []
            for number in range(300):
                await w.send(b"%d" % number)
                await w.cluster.advance(seconds=0.05)
                if number in (77, 150):
                    killed.append(w.cluster.now)
                    await w.cluster.kill("one")
                    await w.cluster.restart("one")
            await w.cluster.advance(seconds=3)
            assert set(at) == set(bodies(0, 300)), "nothing is lost"
            again = [times for times in at.values() if len(times) > 1]
            assert again, "the test means something: work was repeated"
            assert all(any(end - 1.3 <= times[0] <= end for end in killed) for times in again), "and only a second's"

    simulate(main)


def test_power_cut_of_a_broadcast_member_loses_no_message() -> None:
    async def main() -> None:
        async with world() as w:
            seen: Counter[bytes] = Counter()

            async def work() -> None:
                member = w.bare("one", consume_from_where=ConsumeFromWhere.LAST_OFFSET)

                @member.concurrently
                async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                    seen.update(message.body for message in messages)
                    return DONE

                async with member:
                    await member.wait_closed()

            await w.send(b"before")
            await w.cluster.start("one", work)
            await w.cluster.advance(seconds=0.5)
            await w.cluster.cut_power("one")
            await w.send(*bodies(0, 10))
            await w.cluster.restart("one")
            await w.cluster.advance(seconds=3)
            assert seen == Counter(bodies(0, 10)), "where it began is in the file before the first message"

    simulate(main)


def test_attempt_count_continues_after_a_restart() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            attempts: list[int] = []
            await w.send(b"bad")
            for _ in range(2):
                made = w.bare("one", retry=OrderedRetry(backoff=Backoff(first_ms=400, factor=1.0)))

                @made.orderly
                async def fail(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                    attempts.append(context.attempt)
                    raise ValueError("no")

                async with made:
                    await w.cluster.advance(seconds=1)
            assert attempts == list(range(len(attempts)))
            assert len(attempts) > 4

    simulate(main)


def test_each_grant_has_a_higher_epoch_even_across_restarts() -> None:
    async def main() -> None:
        async with world(queues=3) as w:
            for _ in range(3):
                async with w.ordered("one"):
                    await w.cluster.advance(seconds=1)
            assert len(w.epochs) == 9
            assert w.epochs == sorted(set(w.epochs))

    simulate(main)


def test_commit_each_writes_the_offset_file_before_the_next_call() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            seen: list[bytes] = []

            async def work() -> None:
                member = w.bare("one", commit="each")

                @member.orderly
                async def listen(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
                    seen.extend(message.body for message in messages)
                    return ConsumeOrderlyStatus.SUCCESS

                async with member:
                    await member.wait_closed()

            await w.send(*bodies(0, 50))
            await w.cluster.start("one", work)
            for enough in (10, 20, 30):
                await w.cluster.until(lambda enough=enough: len(seen) >= enough)  # type: ignore[misc]
                await w.cluster.kill("one")
                await w.cluster.restart("one")
            await w.cluster.advance(seconds=3)
            assert set(seen) == set(bodies(0, 50))
            assert len(seen) <= 53, "each kill repeats one call at most"

    simulate(main)


def test_broadcast_members_resume_after_a_broker_kill() -> None:
    async def main() -> None:
        async with world(queues=2) as w, w.member("one"), w.member("two"):
            await w.send(*bodies(0, 10))
            await w.cluster.advance(seconds=2)
            await w.cluster.kill("broker-a")
            await w.cluster.advance(seconds=5)
            await w.cluster.restart("broker-a")
            await w.send(*bodies(10, 20))
            await w.cluster.advance(seconds=5)
            assert Counter(w.of("one")) == Counter(w.of("two")) == Counter(bodies(0, 20))

    simulate(main)


def test_member_restarts_the_queue_if_its_saved_offset_is_past_the_end_of_the_brokers_log() -> None:
    """The file is ahead of the broker's queue, as after a power cut of the broker under async flush: new messages reuse those offsets."""

    async def main() -> None:
        async with world(queues=1) as w:
            await w.send(*bodies(0, 4))
            async with w.ordered("one"):
                await w.cluster.advance(seconds=2)
            file = OffsetFile(Host.current(), "~/.lockstep/offsets", GROUP, "one")
            book = file.open()
            book.set(MessageQueue(TOPIC, "broker-a", 0), SavedProgress(100, 0))
            file.write(book.encode())
            file.release()
            w.seen.clear()
            async with w.ordered("one"):
                await w.cluster.advance(seconds=5)
                await w.send(b"4")
                await w.cluster.advance(seconds=5)
            assert w.of("one") == bodies(0, 5)

    simulate(main)


def test_restart_of_a_queue_from_its_beginning_survives_a_crash_of_the_member() -> None:
    """The member is killed after it went back and before its file was written; then the queue grows beyond its earlier offset."""

    async def main() -> None:
        async with world(queues=2) as w:
            queue = (await w.producer.send(Message(TOPIC, b"0", sharding_key="k"))).queue
            await w.send(*bodies(1, 4), sharding_key="k")
            seen: list[bytes] = []

            async def work() -> None:
                if not seen:
                    file = OffsetFile(Host.current(), "~/.lockstep/offsets", GROUP, "one")
                    book = file.open()
                    book.since(TOPIC, 1)
                    book.set(queue, SavedProgress(10, 0))
                    file.write(book.encode())
                    file.release()
                member = w.bare("one")

                @member.concurrently
                async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                    seen.extend(message.body for message in messages)
                    return DONE

                async with member:
                    await member.wait_closed()

            await w.cluster.start("one", work)
            for _ in range(500):
                if not seen:
                    await w.cluster.advance(seconds=0.01)
            assert seen
            await w.cluster.kill("one")
            await w.send(*bodies(4, 20), sharding_key="k")
            await w.cluster.restart("one")
            await w.cluster.advance(seconds=5)
            assert set(seen) == set(bodies(0, 20))

    simulate(main)


def test_queue_is_not_consumed_before_its_start_offset_is_saved() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            member = w.bare("one", consume_from_where=ConsumeFromWhere.LAST_OFFSET).subscribe("later")

            @member.concurrently
            async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                w.seen += [("one", message.body) for message in messages]
                return DONE

            async with member:
                await w.cluster.advance(seconds=1)
                disk = Host.current().files
                assert isinstance(disk, SimFiles)
                broken = Fault("write", "offsets.json", errno.ENOSPC, count=1 << 30)
                disk.faults.append(broken)
                await w.cluster.create_topic("later", queues=1)
                await w.cluster.advance(seconds=3)
                await w.send(b"a", topic="later")
                await w.cluster.advance(seconds=10)
                assert w.seen == [], "a crash now would begin behind it"
                broken.count = 0
                await w.cluster.advance(seconds=3)
                assert w.of("one") == [b"a"]

    simulate(main)


def test_offset_of_a_removed_queue_is_kept_until_the_queue_returns() -> None:
    async def main() -> None:
        async with world(queues=2) as w:
            admin = AdminClient(Host.current(), w.cluster.nameserver)
            async with w.member("one"):
                await w.send(*bodies(0, 10))
                await w.cluster.advance(seconds=3)
                layout = (await admin.route(TOPIC)).layout
                fewer = alter_layout(layout, dict.fromkeys({"broker-a"}, (1, 1)), writer=7)
                await publish_layout(admin, fewer)
                await w.cluster.advance(seconds=40)
                again = alter_layout((await admin.route(TOPIC)).layout, dict.fromkeys({"broker-a"}, (2, 2)), writer=7)
                await publish_layout(admin, again)
                await w.cluster.advance(seconds=40)
                await w.producer.send(Message(TOPIC, b"new"), selector=lambda queues, _: queues[-1])
                await w.cluster.advance(seconds=40)
            assert Counter(w.of("one")) == Counter([*bodies(0, 10), b"new"])

    simulate(main)
