"""Operations on a running cluster, as the commands do them: reset a group, delete a topic and create it again, send strange layouts."""

import asyncio
from collections.abc import Iterator, Sequence

from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.operations.admin_client import AdminClient, by_name
from lockstep.operations.changes.reset_plan import offset_range, plan_moves
from lockstep.operations.targets import Target
from lockstep.protocol.bodies import DataVersion, OffsetRange, PurgeBody, QueueOffset, RegisterBody, ResetBody
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LockstepError, TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.routes import CreateTopicHeader, RegisterBrokerHeader
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.topics.layouts import COUNTER_MAX
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, MessageQueue, TopicLayout
from lockstep.runtime.connections.dial import call, connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.testing.simulated import BROKER_PORT, NAMESERVER_PORT
from sweep.events.producers import FirstSendAcked
from sweep.history import QueueKey
from sweep.universe import Main, Universe

OPERATOR = "10.0.3.2"
"""The address of the machine for these programs."""
RECREATE_TRY_S = 0.3
TAKE_TRY_S = 0.2


def reset_main(universe: Universe, group: str, topic: str, target: Target) -> Main:
    """Run `lockstep group reset-offset`: reset broker by broker, until one fails.

    `target`'s value: for "offset" the position in each queue's messages, in thousandths; for "time" how many milliseconds ago.
    """

    async def main(stop: asyncio.Event) -> int:
        admin = AdminClient(Host.current(), universe.cluster)
        try:
            route = await admin.route(topic)
            brokers = by_name(route.brokers)
            for name in sorted({queue.broker_name for queue in route.layout.read_queues}):
                if name not in brokers:
                    raise TransportError(f"no address is known of {name}")
                queues = [queue for queue in route.layout.read_queues if queue.broker_name == name]
                ranges = {MessageQueue(topic, name, held.queue_id): held for held in await admin.offsets(brokers[name], topic)}
                by_time = {}
                if target.kind == "time":
                    then_ms = admin.host.clock.wall_ms() - target.value
                    by_time = {queue: await admin.offset_by_time(brokers[name], topic, queue.queue_id, then_ms) for queue in queues}
                body = ResetBody(group, topic, tuple(_wanted(queues, ranges, target, by_time)))
                await admin.reset(brokers[name], body)
                universe.record_reached("progress reset", f"{name} {target}")
        except LockstepError as error:
            universe.record_reached("reset failed", f"{error!r:.120}")
        return 0

    return main


def _wanted(
    queues: Sequence[MessageQueue], ranges: dict[MessageQueue, OffsetRange], target: Target, by_time: dict[MessageQueue, int]
) -> Iterator[QueueOffset]:
    for queue in queues:
        held = offset_range(queue, ranges)
        exact = target
        if target.kind == "offset":
            exact = Target("offset", held.min_offset + (held.max_offset - held.min_offset) * target.value // 1_000)
        (move,) = plan_moves([queue], (), ranges, exact, by_time)
        yield QueueOffset(queue.queue_id, move.after)


def reset_twice_main(universe: Universe, broker: str, group: str, topic: str, shares: Sequence[int]) -> Main:
    """Send several resets at once to one broker, so that it handles all of them in one turn of its loop.

    `shares`: the position of each reset, in thousandths of each queue's messages.
    """

    async def main(stop: asyncio.Event) -> int:
        admin, address = AdminClient(Host.current(), universe.cluster), f"{universe.brokers[broker]}:{BROKER_PORT}"
        try:
            route = await admin.route(topic)
            queues = [queue for queue in route.layout.read_queues if queue.broker_name == broker]
            held = await admin.offsets(by_name(route.brokers)[broker], topic) if broker in by_name(route.brokers) else ()
            ranges = {MessageQueue(topic, broker, one.queue_id): one for one in held}
            bodies = [ResetBody(group, topic, tuple(_wanted(queues, ranges, Target("offset", share), {}))) for share in shares]
            endpoint = await connect(Host.current(), address, timeout_ms=3_000)
            try:
                sent = [endpoint.request(RequestCode.RESET_OFFSETS, {}, encode_body(body), timeout_ms=3_000) for body in bodies]
                await asyncio.gather(*sent)
            finally:
                endpoint.abort("the resets are done")
            universe.record_reached("progress reset", f"{broker} {shares} of 1,000")
        except LockstepError as error:
            universe.record_reached("reset failed", f"{error!r:.120}")
        return 0

    return main


def purge_main(universe: Universe, topic: str, shares: Sequence[int]) -> Main:
    """Run `lockstep topic purge --force`: broker by broker, until one fails.

    `shares`: how much of a queue is removed, in thousandths of its messages; the queues of a broker use them in turn.
    """

    async def main(stop: asyncio.Event) -> int:
        admin = AdminClient(Host.current(), universe.cluster)
        try:
            brokers = by_name((await admin.route(topic)).brokers)
            for name in sorted(brokers):
                held = await admin.offsets(brokers[name], topic)
                wanted = [
                    QueueOffset(
                        one.queue_id, one.min_offset + (one.max_offset - one.min_offset) * shares[one.queue_id % len(shares)] // 1_000
                    )
                    for one in held
                ]
                reply = await admin.purge(brokers[name], PurgeBody(topic, tuple(wanted), force=True))
                if reply.group_count:
                    universe.record_reached("topic purged", f"{name}: {reply.groups[0]}")
        except LockstepError as error:
            universe.record_reached("purge failed", f"{error!r:.120}")
        return 0

    return main


def delete_main(universe: Universe, topic: str) -> Main:
    """Run `lockstep topic delete` at every registered broker by name; one that does not respond gets the deletion from the nameserver."""

    async def main(stop: asyncio.Event) -> int:
        admin = AdminClient(Host.current(), universe.cluster)
        try:
            gone = (await admin.route(topic)).layout.deletion
            brokers = sorted((broker for broker in await admin.brokers() if broker.registered), key=lambda broker: broker.name)
        except LockstepError as error:
            universe.record_reached("delete failed", f"{error!r:.120}")
            return 0
        for broker in brokers:
            try:
                await admin.put_layout(broker, gone)
                universe.record_reached("topic deleted", f"{topic} at {broker.name}")
            except LockstepError as error:
                universe.record_reached("delete failed", f"{broker.name}: {error!r:.120}")
        return 0

    return main


def recreate_main(universe: Universe, topic: str, queues: int) -> Main:
    """Run `lockstep topic create` until it succeeds."""

    async def main(stop: asyncio.Event) -> int:
        instance = Client(universe.cluster, host=Host.current()).instance()
        while not stop.is_set():
            try:
                await instance.start()
                layout = await create_topic(instance, topic, queues)
                universe.record_reached("topic created again", f"layout {layout.version.counter}")
                break
            except LockstepError:
                await asyncio.sleep(RECREATE_TRY_S)
        await instance.close()
        return 0

    return main


def first_sends_main(universe: Universe, topic: str) -> Main:
    """Send SEND_MESSAGE of a new topic to every broker at once, as RocketMQ's producers do if brokers create topics."""

    async def send(name: str, address: str) -> None:
        body = f"{topic} at {name}".encode()
        header = to_plain(SendMessageHeader("prod", topic, 0, default_topic_queue_nums=1))
        try:
            response = await call(Host.current(), f"{address}:{BROKER_PORT}", RequestCode.SEND_MESSAGE, header, body, timeout_ms=3_000)
        except LockstepError:
            return
        if response.code == ResponseCode.SUCCESS:
            queue = QueueKey("", name, topic, 0)
            universe.history.append(FirstSendAcked(*universe.origin(), queue, body))

    async def main(stop: asyncio.Event) -> int:
        await asyncio.gather(*(send(name, address) for name, address in universe.brokers.items()))
        return 0

    return main


def strange_layouts_main(universe: Universe, name: str, topic: str) -> Main:
    """Send layouts with the highest counters to one broker: it must refuse those that leave no next counter, and stay registered."""
    entries = (LayoutEntry(name, 1, 1, 1),)
    steps = ((COUNTER_MAX - 1, entries), (COUNTER_MAX, ()), (1 << 20, entries), ((1 << 20) + 1, ()), (1, entries))

    async def main(stop: asyncio.Event) -> int:
        header = to_plain(CreateTopicHeader(topic, 1, 1))
        address = f"{universe.brokers[name]}:{BROKER_PORT}"
        for counter, queues in steps:
            body = encode_body(TopicLayout(topic, LayoutVersion(counter, 7), queues))
            try:
                await call(Host.current(), address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, body, timeout_ms=3_000)
            except LockstepError:
                return 0
        return 0

    return main


def take_name_main(name: str, nameserver: str, seconds: float) -> Main:
    """Register another store under a broker's name, repeatedly, and respond when the nameserver checks whether it is alive."""

    def response(command: Command, endpoint: Endpoint) -> None:
        if not command.is_oneway:
            endpoint.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))

    async def main(stop: asyncio.Event) -> int:
        host, loop = Host.current(), asyncio.get_running_loop()
        address = "10.0.3.31:1"
        header = to_plain(RegisterBrokerHeader(name, "DefaultCluster", address, "f" * 32, 1 << 40, "e" * 32, 0))
        body = encode_body(RegisterBody({"internal": address}, (), DataVersion(1, 1)))
        end = loop.time() + seconds
        while loop.time() < end:
            try:
                endpoint = await connect(host, f"{nameserver}:{NAMESERVER_PORT}", handler=response)
                while loop.time() < end and not endpoint.closed:
                    await endpoint.request(RequestCode.REGISTER_BROKER, header, body, timeout_ms=3_000)
                    await asyncio.sleep(TAKE_TRY_S)
                endpoint.close("done")
            except LockstepError:
                await asyncio.sleep(TAKE_TRY_S)
        return 0

    return main
