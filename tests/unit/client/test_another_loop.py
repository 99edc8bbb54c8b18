"""A producer or consumer belongs to the event loop on which it was started, until it ends or that loop is closed."""

import asyncio
import copy
import gc
import os
import pickle
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import (
    Client,
    ConsumeFromWhere,
    ConsumerState,
    GivenId,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StateError,
)
from lockstep.client.sync import Producer as BlockingProducer
from lockstep.protocol.messages.message import decode_messages, encode_message
from support.cluster_thread import cluster_in_a_thread
from support.loops import LOOPS, Factory, until

# A loop that is closed may have tasks that it has not begun.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

FIRST = ConsumeFromWhere.FIRST_OFFSET
Loop = asyncio.AbstractEventLoop
OTHER = "belongs to another event loop, <"
IDLE_SOCKETS: dict[Factory, int] = {}
"""The sockets of this process before the first test, with a loop of each kind."""


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster_in_a_thread(tmp_path_factory.mktemp("up")) as address:
        for new_loop in LOOPS.values():
            with asyncio.Runner(loop_factory=new_loop) as runner:
                IDLE_SOCKETS[new_loop] = runner.run(sockets())
        yield address


@pytest.fixture(autouse=True)
def no_garbage() -> Iterator[None]:
    """Collect what the closed loops have left within its own test, whose warnings are expected."""
    yield
    gc.collect()


@contextmanager
def another_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Run an event loop in a thread. Yield a function that runs a coroutine on it and returns its result."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def asyncio_run(new_loop: Factory, coroutine: Coroutine[Any, Any, Any]) -> None:
    """End the loop as asyncio.run does: its tasks are cancelled."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(coroutine)


def run_and_close(new_loop: Factory, coroutine: Coroutine[Any, Any, Any]) -> None:
    """End the loop without the tasks on it."""
    loop = new_loop()
    loop.run_until_complete(coroutine)
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


ENDS: list[Callable[[Factory, Coroutine[Any, Any, Any]], None]] = [asyncio_run, run_and_close]
a_closed_loop = pytest.mark.parametrize("run", ENDS)
uvloops_warning = pytest.mark.filterwarnings("ignore:unclosed resource <TCPTransport:ResourceWarning")
"""uvloop warns of each transport that is open when its loop is closed. As an error, the warning would keep the loop from being closed."""
any_loop = pytest.mark.parametrize("new_loop", LOOPS.values(), ids=list(LOOPS))


async def sockets() -> int:
    """Return the number of sockets of this process, those of the running loop included."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except FileNotFoundError:
            continue  # it was that of the directory
    return count


async def until_sockets_are(count: int) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + 10
    while (now := await sockets()) != count:
        assert loop.time() < end, f"{now} sockets, expected {count}"
        await asyncio.sleep(0.001)


async def sent(producer: Producer, topic: str, body: bytes = b"x") -> int:
    return (await producer.send(Message(topic, body, sharding_key="k"))).queue_offset


# -------------------------------------------------------------------------------------------------------------------------- another loop

QUEUE = MessageQueue("two-loops", "broker-a", 0)
PRODUCER_CALLS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    "send": lambda producer: producer.send(Message("two-loops", b"other", sharding_key="k")),
    "send to a new topic": lambda producer: producer.send(Message("never-made", b"other")),
    "delayed send": lambda producer: producer.send(Message("two-loops", b"other"), delay_level=1),
    "post": lambda producer: producer.post(Message("two-loops", b"other", sharding_key="k")),
    "send_batch": lambda producer: producer.send_batch([Message("two-loops", b"other", sharding_key="k")]),
    "send_records": lambda producer: producer.send_records(QUEUE, b"x", [1]),
    "send_oneway": lambda producer: producer.send_oneway(Message("two-loops", b"other", sharding_key="k")),
    "request": lambda producer: producer.request(Message("two-loops", b"other", sharding_key="k")),
    "start": lambda producer: producer.start(),
    "close": lambda producer: producer.close(),
}


@pytest.mark.parametrize("call", PRODUCER_CALLS)
def test_call_of_a_producer_on_another_loop_raises_and_touches_nothing(nameserver: str, call: str) -> None:
    producer = Producer("shop", nameserver=nameserver)

    async def on_another() -> None:
        with pytest.raises(StateError, match=OTHER):
            await PRODUCER_CALLS[call](producer)

    with another_loop() as elsewhere:
        elsewhere(producer.start())
        before = elsewhere(sent(producer, "two-loops"))
        asyncio.run(on_another())
        assert producer.in_flight_count == 0
        assert elsewhere(sent(producer, "two-loops")) == before + 1, "the producer works, and nothing else was stored"
        elsewhere(producer.close())


(REQUEST,) = decode_messages(encode_message(Message("two-loops", b"x"), 0, "A" * 32, 0), "broker-a")
PUSH_CALLS: dict[str, Callable[[PushConsumer], Awaitable[object] | None]] = {
    "start": lambda consumer: consumer.start(),
    "stop": lambda consumer: consumer.stop(),
    "wait_closed": lambda consumer: consumer.wait_closed(),
    "pause": lambda consumer: consumer.pause(),
    "resume": lambda consumer: consumer.resume(),
    "reply": lambda consumer: consumer.reply(REQUEST, b"other"),
    "expired": lambda consumer: consumer.expired(REQUEST) and None,
}
PULL_CALLS: dict[str, Callable[[PullConsumer], Awaitable[object] | None]] = {
    "start": lambda consumer: consumer.start(),
    "stop": lambda consumer: consumer.stop(),
    "wait_closed": lambda consumer: consumer.wait_closed(),
    "poll": lambda consumer: consumer.poll(),
    "next": lambda consumer: anext(consumer),
    "commit": lambda consumer: consumer.commit(),
    "queues": lambda consumer: consumer.queues("polled-elsewhere"),
    "seek": lambda consumer: consumer.seek(consumer.assignment()[0], 0),
    "seek_to_begin": lambda consumer: consumer.seek_to_begin(consumer.assignment()[0]),
    "seek_to_end": lambda consumer: consumer.seek_to_end(consumer.assignment()[0]),
    "offset_at": lambda consumer: consumer.offset_at(consumer.assignment()[0], 0),
    "position": lambda consumer: consumer.position(consumer.assignment()[0]) and None,
    "committed": lambda consumer: consumer.committed(consumer.assignment()[0]) and None,
    "pause": lambda consumer: consumer.pause(),
    "resume": lambda consumer: consumer.resume(),
    "reply": lambda consumer: consumer.reply(REQUEST, b"other"),
    "expired": lambda consumer: consumer.expired(REQUEST) and None,
}


async def calling(call: Callable[[Any], Awaitable[object] | None], consumer: PushConsumer | PullConsumer) -> None:
    async def work() -> None:
        awaitable = call(consumer)
        if awaitable is not None:
            await awaitable

    with pytest.raises(StateError, match=OTHER):
        await work()


def test_calls_of_a_push_consumer_on_another_loop_raise_and_touch_nothing(nameserver: str) -> None:
    consumer = PushConsumer("billing", nameserver=nameserver, consume_from_where=FIRST).subscribe("pushed-elsewhere")
    came: list[bytes] = []

    @consumer.orderly
    async def handle(messages: Any, context: object) -> None:
        came.extend(message.body for message in messages)

    with another_loop() as elsewhere, BlockingProducer("shop", nameserver=nameserver) as producer:
        elsewhere(consumer.start())
        for call in PUSH_CALLS.values():
            asyncio.run(calling(call, consumer))
        assert consumer.health().state is ConsumerState.RUNNING
        producer.send(Message("pushed-elsewhere", b"1", sharding_key="k"))
        asyncio.run(until(lambda: came == [b"1"], timeout_s=60))
        elsewhere(consumer.stop())


def test_calls_of_a_pull_consumer_on_another_loop_raise_and_touch_nothing(nameserver: str) -> None:
    consumer = PullConsumer("reports", nameserver=nameserver, consume_from_where=FIRST).subscribe("polled-elsewhere")
    with another_loop() as elsewhere, BlockingProducer("shop", nameserver=nameserver) as producer:
        producer.send(Message("polled-elsewhere", b"1", sharding_key="k"))
        elsewhere(consumer.start())
        assert [message.body for message in elsewhere(consumer.poll(60_000))] == [b"1"]
        for call in PULL_CALLS.values():
            asyncio.run(calling(call, consumer))
        producer.send(Message("polled-elsewhere", b"2", sharding_key="k"))
        assert [message.body for message in elsewhere(consumer.poll(60_000))] == [b"2"]
        elsewhere(consumer.stop())


def test_push_consumer_is_paused_and_resumed_by_a_thread_without_a_loop(nameserver: str) -> None:
    consumer = PushConsumer("breaker", nameserver=nameserver, consume_from_where=FIRST).subscribe("paused-by-thread")
    came: list[bytes] = []

    @consumer.orderly
    async def handle(messages: Any, context: object) -> None:
        came.extend(message.body for message in messages)

    with another_loop() as elsewhere, BlockingProducer("shop", nameserver=nameserver) as producer:
        elsewhere(consumer.start())
        consumer.pause()
        producer.send(Message("paused-by-thread", b"1", sharding_key="k"))
        assert came == []
        consumer.resume()
        asyncio.run(until(lambda: came == [b"1"], timeout_s=60))
        elsewhere(consumer.stop())


def test_plain_listener_replies_by_the_loop_of_its_consumer_to_a_request_of_a_thread(nameserver: str) -> None:
    consumer = PushConsumer("pricing", nameserver=nameserver, consume_from_where=FIRST).subscribe("plain-requests")
    loops: list[Loop] = []

    @consumer.concurrently
    def quote(messages: Any, context: object) -> None:
        for message in messages:
            asyncio.run_coroutine_threadsafe(consumer.reply(message, b"187.3"), loops[0]).result(60)

    async def start() -> None:
        loops.append(asyncio.get_running_loop())
        await consumer.start()

    with another_loop() as elsewhere, BlockingProducer("asking", nameserver=nameserver) as producer:
        producer.send(Message("plain-requests", b"the topic is there"))
        elsewhere(start())
        assert producer.request(Message("plain-requests", b"AAPL"), timeout_ms=60_000).body == b"187.3"
        assert producer.health().request_count == 0
        elsewhere(consumer.stop())


# ------------------------------------------------------------------------------------------------------------------------- a closed loop


@any_loop
@a_closed_loop
@uvloops_warning
@pytest.mark.parametrize("then", ["start", "close"])
def test_producer_of_a_closed_loop_is_dropped_by_the_next_start_or_close(
    nameserver: str, run: Callable[..., None], new_loop: Factory, then: str
) -> None:
    producer = Producer("shop", nameserver=nameserver)
    offsets: list[int] = []

    async def begin() -> None:
        await producer.start()
        offsets.append(await sent(producer, "closed-loop"))

    async def refused() -> None:
        with pytest.raises(StateError, match=r"was started on an event loop that has been closed since: start it again"):
            await sent(producer, "closed-loop")

    async def go_on() -> None:
        if then == "close":
            await producer.close()
            assert repr(producer) == "<Producer shop closed>"
            await until_sockets_are(IDLE_SOCKETS[new_loop])
        await producer.start()
        offsets.append(await sent(producer, "closed-loop"))
        await producer.close()
        await until_sockets_are(IDLE_SOCKETS[new_loop])

    run(new_loop, begin())
    asyncio.run(refused())
    run(new_loop, go_on())
    assert offsets[1] == offsets[0] + 1
    assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


@any_loop
@a_closed_loop
@uvloops_warning
def test_client_that_two_producers_share_is_dropped_as_a_whole(nameserver: str, run: Callable[..., None], new_loop: Factory) -> None:
    client = Client(nameserver)
    first, second = Producer("shop", client=client), Producer("shop", client=client)

    async def begin() -> None:
        for producer in (first, second):
            await producer.start()
            await sent(producer, "closed-shared")

    async def go_on() -> None:
        await first.close()
        await until_sockets_are(IDLE_SOCKETS[new_loop])
        await second.start()
        await sent(second, "closed-shared")
        with pytest.raises(StateError, match="producer shop is closed"):
            await sent(first, "closed-shared")
        await second.close()
        await until_sockets_are(IDLE_SOCKETS[new_loop])

    run(new_loop, begin())
    run(new_loop, go_on())


@a_closed_loop
@uvloops_warning
def test_producer_with_a_given_id_is_not_started_again_after_its_loop(nameserver: str, run: Callable[..., None]) -> None:
    """A second start would number its frames from 0 again, and the broker would take them for repetitions."""
    producer = Producer("shop", nameserver=nameserver, given_id=GivenId("1" * 32, 0, 0))

    async def again() -> None:
        with pytest.raises(StateError, match="given id is for one start"):
            await producer.start()

    run(asyncio.new_event_loop, producer.start())
    asyncio.run(again())
    assert repr(producer) == "<Producer shop closed>", "the refused start has dropped the closed loop"


@pytest.mark.parametrize(("run", "then", "plain"), [(asyncio_run, "start", False), (run_and_close, "stop", True)])
@any_loop
@uvloops_warning
def test_push_consumer_of_a_closed_loop_is_dropped_by_the_next_start_or_stop(
    nameserver: str, run: Callable[..., None], new_loop: Factory, then: str, plain: bool
) -> None:
    topic = f"closed-push-{run.__name__}-{plain}-{then}-{new_loop.__module__}".replace("_", "-").replace(".", "-")
    consumer = PushConsumer(f"g-{topic}", nameserver=nameserver, consume_from_where=FIRST).subscribe(topic)
    came: list[bytes] = []

    def handle(messages: Any, context: object) -> None:
        came.extend(message.body for message in messages)

    async def awaited(messages: Any, context: object) -> None:
        handle(messages, context)

    consumer.orderly(handle if plain else awaited)

    async def begin() -> None:
        await consumer.start()
        await until(lambda: came == [b"1"], timeout_s=60)

    async def go_on() -> None:
        with pytest.raises(StateError, match="has been closed since"):
            await consumer.wait_closed()
        with pytest.raises(StateError, match="has been closed since"):
            consumer.pause()
        if then == "stop":
            await consumer.stop()
            assert consumer.state is ConsumerState.STOPPED
            await consumer.wait_closed()
            await until_sockets_are(IDLE_SOCKETS[new_loop])
        await consumer.start()
        await until(lambda: came[-1] == b"2", timeout_s=60)
        await consumer.stop()
        await until_sockets_are(IDLE_SOCKETS[new_loop])

    with BlockingProducer("shop", nameserver=nameserver) as producer:
        producer.send(Message(topic, b"1", sharding_key="k"))
    run(new_loop, begin())
    with BlockingProducer("shop", nameserver=nameserver) as producer:
        producer.send(Message(topic, b"2", sharding_key="k"))
    run(new_loop, go_on())
    assert set(came) == {b"1", b"2"}, "what was not committed comes again"


@a_closed_loop
@uvloops_warning
def test_pull_consumer_of_a_closed_loop_is_dropped_by_the_next_start(nameserver: str, run: Callable[..., None]) -> None:
    topic = f"closed-pull-{run.__name__}".replace("_", "-")
    consumer = PullConsumer(f"g-{topic}", nameserver=nameserver, consume_from_where=FIRST, auto_commit=False).subscribe(topic)

    async def begin() -> None:
        await consumer.start()
        (message,) = await consumer.poll(60_000)
        assert message.body == b"1"
        await consumer.commit()

    async def go_on() -> None:
        with pytest.raises(StateError, match="has been closed since"):
            await consumer.poll()
        await consumer.start()
        (message,) = await consumer.poll(60_000)
        assert message.body == b"2"
        await consumer.stop()

    with BlockingProducer("shop", nameserver=nameserver) as producer:
        producer.send(Message(topic, b"1", sharding_key="k"))
        run(asyncio.new_event_loop, begin())
        producer.send(Message(topic, b"2", sharding_key="k"))
    asyncio.run(go_on())


@a_closed_loop
@uvloops_warning
def test_broadcasting_member_of_a_closed_loop_gives_up_its_file(nameserver: str, run: Callable[..., None], tmp_path: Path) -> None:
    topic = f"closed-broadcast-{run.__name__}".replace("_", "-")
    consumer = PushConsumer(
        "prices",
        nameserver=nameserver,
        consume_from_where=FIRST,
        message_model=MessageModel.BROADCASTING,
        offset_dir=str(tmp_path),
    ).subscribe(topic)
    came: list[bytes] = []

    @consumer.orderly
    async def handle(messages: Any, context: object) -> None:
        came.extend(message.body for message in messages)

    async def begin(body: bytes) -> None:
        await consumer.start()
        await until(lambda: body in came, timeout_s=60)

    with BlockingProducer("shop", nameserver=nameserver) as producer:
        producer.send(Message(topic, b"1", sharding_key="k"))
        run(asyncio.new_event_loop, begin(b"1"))
        producer.send(Message(topic, b"2", sharding_key="k"))
    run(asyncio.new_event_loop, begin(b"2"))
    asyncio.run(consumer.stop())


# ------------------------------------------------------------------------------------------------------------------------ another process


def test_producer_of_the_parent_is_started_again_in_a_forked_child(nameserver: str) -> None:
    """The child leaves the parent's connections alone: the parent sends on."""
    producer = Producer("shop", nameserver=nameserver)
    with asyncio.Runner() as runner:
        runner.run(producer.start())
        first = runner.run(sent(producer, "forked"))
        pid = os.fork()
        if pid == 0:
            os._exit(in_child(producer))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert runner.run(sent(producer, "forked")) == first + 2
        runner.run(producer.close())


def in_child(producer: Producer) -> int:
    async def work() -> int:
        try:
            await sent(producer, "forked")
        except StateError as error:
            if "was started in the parent of this process, before a fork: start it again" not in str(error):
                return 2
        else:
            return 3
        async with producer:
            await sent(producer, "forked")
        return 0

    try:
        return asyncio.run(work())
    except BaseException:  # the test process must not go on twice
        return 4


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("make", [Producer, BlockingProducer, PushConsumer, PullConsumer, lambda _: Client()])
def test_client_object_is_made_in_each_process(make: Callable[[str], object], again: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match=r"<.*> can't be pickled or copied, .*: make it in each process"):
        again(make("shop"))
