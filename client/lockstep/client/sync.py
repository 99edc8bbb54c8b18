"""A producer for programs that block: Flask, Django, scripts. The asynchronous one does the work, in a thread of its own.

producer = Producer("shop", nameserver="10.0.0.5:9876")       # at import time: nothing is connected yet

def view(request):
    producer.send(Message("orders", b"created", sharding_key="1001"))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lockstep.client.config import GroupArguments
from lockstep.client.producer import producer as asynchronous
from lockstep.client.producer.config import ProducerConfig, Require
from lockstep.client.producer.hooks import SendHook
from lockstep.client.producer.result import SendResult
from lockstep.client.producer.routing import Selector
from lockstep.client.settings import settings_of, takes_arguments_of
from lockstep.protocol.message import Message
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.loop_thread import LoopThread

__all__ = ["Producer"]


@dataclass(frozen=True, kw_only=True)
class ProducerArguments(ProducerConfig, GroupArguments):
    """The arguments of Producer."""


class Producer:
    """The Producer of lockstep.client with blocking methods: the same settings, results and errors. One serves all threads of a process.

    - It connects at its first send, or at `start()`. Sends of several threads share frames and connections.
    - `close()`, or the end of a `with`, waits for what is in flight; so does the end of the program.
    - After a fork (gunicorn, uWSGI, Celery: with or without preloading) the child's first send starts it anew, with connections of the
      child's own; what the parent had in flight stays the parent's. A closed one stays closed.
    - Ctrl-C during a send withdraws the message if it is not written yet, and raises KeyboardInterrupt at once.
    - StateError where it is called on an event loop, which it would block: use the asynchronous one there.
    - gevent and eventlet turn threads into greenlets, which an event loop in a thread does not survive: not for their workers.
    """

    @takes_arguments_of(ProducerArguments)
    def __init__(self, arguments: ProducerArguments) -> None:
        self.group = group = arguments.group
        self.config: ProducerConfig = arguments
        self._hooks: list[SendHook] = []

        def make() -> asynchronous.Producer:
            producer = asynchronous.Producer(group, nameserver=arguments.nameserver, **settings_of(arguments, ProducerConfig))
            for hook in self._hooks:
                producer.add_hook(hook)
            return producer

        make()  # whatever is wrong with a setting is raised here, not at the first send
        self._thread = LoopThread(f"producer {group}", make)

    # ------------------------------------------------------------------------------------------------------------------ life

    def start(self) -> None:
        """Connect now, not at the first send. TransportError where no nameserver answers: it may be called again."""
        self._thread.start()

    def close(self) -> None:
        """Take no more sends, wait until those in flight have ended (each has its deadline), and leave."""
        self._thread.close()

    def __enter__(self) -> "Producer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer {self.group} {self._thread.state}>"

    def add_hook(self, hook: SendHook) -> SendHook:
        """Tell it of every send from now on (lockstep.client.producer.hooks), in the producer's own thread."""
        self._hooks.append(hook)
        self._thread.look(lambda producer: producer.add_hook(hook), hook)
        return hook

    @property
    def possible_duplicates(self) -> int:
        """Of this process: unkeyed messages that went to another broker, and delayed ones that were sent again, while the first one may
        have been stored."""
        return self._thread.look(lambda producer: producer.possible_duplicates, 0)

    @property
    def in_flight_count(self) -> int:
        """Messages that are sent and not acknowledged."""
        return self._thread.look(lambda producer: producer.in_flight_count, 0)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the same, as the in-flight limit counts them."""
        return self._thread.look(lambda producer: producer.in_flight_bytes, 0)

    # ------------------------------------------------------------------------------------------------------------------ send

    def send(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        require: Require = "stored",
        delay_level: int | None = None,
        delay: timedelta | None = None,
    ) -> SendResult:
        """Send one message; returns when a broker has stored it, or raises at its deadline (3 s, keyed 30 s: `timeout_ms`).

        Arguments and errors are those of lockstep.client.Producer.send. A selector is called in the producer's own thread. While the
        in-flight limit is reached it waits for that before.
        """
        return self._thread.call(
            lambda producer: producer.send(
                message,
                selector=selector,
                queue=queue,
                timeout_ms=timeout_ms,
                require=require,
                delay_level=delay_level,
                delay=delay,
            )
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        require: Require = "stored",
    ) -> list[SendResult]:
        """Send many, results in their order, as lockstep.client.Producer.send_batch does."""
        return self._thread.call(
            lambda producer: producer.send_batch(
                messages,
                selector=selector,
                queue=queue,
                timeout_ms=timeout_ms,
                require=require,
            )
        )

    def send_oneway(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Write one message and wait for nothing, as lockstep.client.Producer.send_oneway does: it may be lost."""
        self._thread.call(lambda producer: producer.send_oneway(message, selector=selector, queue=queue))
