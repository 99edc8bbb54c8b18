"""Uses RocketMQ's C++ client, by its Python wrapper `rocketmq`, in each way that a program does: NAMESERVER USE…

Prints a line "ok USE" or "failed USE: WHY" for each. It runs in an environment of its own, without lockstep.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

from rocketmq.client import Message, MessageModel, Producer, PullConsumer, PushConsumer, SendStatus

LIMIT_S = 60
NAMESERVERS = sys.argv[1]


class Uses:
    def __init__(self) -> None:
        self.producer = Producer("cpp-shop", timeout=10_000)
        self.producer.set_namesrv_addr(NAMESERVERS)
        self.sign(self.producer)
        self.producer.start()
        self.members = 0

    @staticmethod
    def sign(client: object) -> None:
        """Sign the requests of a client, if the environment has an AccessKey."""
        if "ACCESS_KEY" in os.environ:
            client.set_session_credentials(os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"], "ALIYUN")  # type: ignore[attr-defined]

    def sync(self, topic: str) -> None:
        self.send(topic, "TagA", "1")

    def asynchronous(self, topic: str) -> None:
        results: list[object] = []
        self.producer.send_async(message(topic, "TagA", "1"), lambda result: results.append(result.status), results.append)
        wait_until(lambda: bool(results), "a response")
        assert results == [SendStatus.OK], results
        self.consume_until(topic, "*", {"1"})

    def oneway(self, topic: str) -> None:
        self.send(topic, "TagA", "first")
        self.producer.send_oneway(message(topic, "TagA", "1"))
        self.consume_until(topic, "*", {"first", "1"})

    def batch(self, topic: str) -> None:
        self.send(topic, "TagA", "first")
        result = self.producer.send_batch([message(topic, "TagA", str(number)) for number in range(10)])
        assert result.status == SendStatus.OK, result
        self.consume_until(topic, "*", {"first", *map(str, range(10))})

    def compressed(self, topic: str) -> None:
        self.send(topic, "TagA", "x" * 100_000)
        self.consume_until(topic, "*", {"x" * 100_000})

    def push(self, topic: str) -> None:
        for number in range(100):
            self.send(topic, "TagA", str(number))
        self.consume_until(topic, "*", set(map(str, range(100))))

    def tags(self, topic: str) -> None:
        for tag in ("TagA", "TagB", "TagC"):
            self.send(topic, tag, tag)
        got = self.consume_until(topic, "TagA || TagC", {"TagA", "TagC"})
        assert "TagB" not in got, got

    def retry(self, topic: str) -> None:
        self.send(topic, "TagA", "1")
        attempts: list[int] = []

        def listen(received: object) -> None:
            attempts.append(received.reconsume_times)  # type: ignore[attr-defined]
            if len(attempts) < 2:
                raise RuntimeError("again")

        self.consume(topic, "*", listen, lambda: 1 in attempts)
        assert attempts == [0, 1], attempts

    def delay(self, topic: str) -> None:
        delayed = message(topic, "TagA", "1")
        delayed.set_delay_time_level(1)
        self.producer.send_sync(delayed)
        self.consume_until(topic, "*", {"1"})

    def ordered(self, topic: str) -> None:
        sent = [str(number) for number in range(100)]
        for body in sent:
            result = self.producer.send_orderly(message(topic, "TagA", body), 7)
            assert result.status == SendStatus.OK, result
        got: list[str] = []
        self.consume(topic, "*", lambda received: got.append(received.body.decode()), lambda: len(got) >= len(sent), orderly=True)
        assert got == sent, got

    def resume(self, topic: str) -> None:
        self.send(topic, "TagA", "before")
        self.consume_until(topic, "*", {"before"})
        self.send(topic, "TagA", "after")
        got = self.consume_until(topic, "*", {"after"})
        assert "before" not in got, f"the committed offset is not used: {got}"

    def pull(self, topic: str) -> None:
        self.send(topic, "TagA", "1")
        self.send(topic, "TagA", "2")
        consumer = PullConsumer(f"group-{topic}")
        consumer.set_namesrv_addr(NAMESERVERS)
        self.sign(consumer)
        consumer.start()
        got: set[str] = set()

        def pulled() -> bool:
            got.update(received.body.decode() for received in consumer.pull(topic))
            return got == {"1", "2"}

        wait_until(pulled, got)
        consumer.shutdown()

    def broadcast(self, topic: str) -> None:
        self.send(topic, "TagA", "old")
        got: list[set[str]] = [set(), set()]
        consumers = [self.consumer(topic, message_model=MessageModel.BROADCASTING) for _ in got]
        for consumer, bodies in zip(consumers, got, strict=True):
            consumer.subscribe(topic, lambda received, bodies=bodies: bodies.add(received.body.decode()))
            consumer.start()

        def heard() -> bool:
            self.send(topic, "TagA", "new")
            return all("new" in bodies for bodies in got)

        wait_until(heard, got)
        for consumer in consumers:
            consumer.shutdown()

    def send(self, topic: str, tag: str, body: str) -> None:
        result = self.producer.send_sync(message(topic, tag, body))
        assert result.status == SendStatus.OK, result

    def consume_until(self, topic: str, expression: str, bodies: set[str]) -> set[str]:
        got: set[str] = set()
        self.consume(topic, expression, lambda received: got.add(received.body.decode()), lambda: bodies <= got)
        return got

    def consume(
        self, topic: str, expression: str, listen: Callable[..., object], done: Callable[[], bool], *, orderly: bool = False
    ) -> None:
        consumer = self.consumer(topic, orderly=orderly)
        consumer.subscribe(topic, listen, expression)
        consumer.start()
        wait_until(done, "messages")
        consumer.shutdown()

    def consumer(self, topic: str, **options: object) -> PushConsumer:
        self.members += 1
        consumer = PushConsumer(f"group-{topic}", **options)
        consumer.set_namesrv_addr(NAMESERVERS)
        self.sign(consumer)
        consumer.set_instance_name(f"member-{self.members}")
        return consumer


def message(topic: str, tag: str, body: str) -> Message:
    made = Message(topic)
    made.set_tags(tag)
    made.set_body(body)
    return made


def wait_until(done: Callable[[], bool], state: object) -> None:
    end = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end, f"not within {LIMIT_S} s: {state}"
        threading.Event().wait(0.02)


def main() -> None:
    uses = Uses()
    for use in sys.argv[2:]:
        try:
            getattr(uses, use)(f"cpp-{use}")
        except Exception as error:
            said = f"failed {use}: {type(error).__name__} {error}".replace("\n", " ")
        else:
            said = f"ok {use}"
        print(said, flush=True)
    os._exit(0)


main()
