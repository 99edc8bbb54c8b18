"""A producer for programs that block: Flask, Django, scripts. It runs the asynchronous producer in a thread of its own.

producer = Producer("shop", nameserver="10.0.0.5:9876")       # at import time: nothing is connected yet

def view(request):
    producer.send(Message("orders", b"created", sharding_key="1001"))
"""

import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from lockstep.client.config import GroupArguments
from lockstep.client.life import OfOneProcess
from lockstep.client.producer import producer as asynchronous
from lockstep.client.producer import transactions
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.health import ProducerHealth, ProducerState
from lockstep.client.producer.hooks import SendHook
from lockstep.client.producer.machines.routing import Selector
from lockstep.client.producer.result import SendResult
from lockstep.client.producer.transactions import C, Check, TransactionStatus
from lockstep.client.settings import settings_of, takes_arguments_of
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.loop_thread import LoopThread

__all__ = ["Producer", "Transaction", "TransactionProducer"]

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[asynchronous.Producer, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Producer", P], T]:
    """Return a method with the same arguments, result, errors and docstring that waits for `method` in the producer's thread."""

    @functools.wraps(method)
    def call(self: "Producer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(lambda producer: method(producer, *args, **kwargs))

    return call


@dataclass(frozen=True, kw_only=True)
class ProducerArguments(ProducerConfig, GroupArguments):
    """The arguments of Producer."""


class Producer(OfOneProcess):
    """The Producer of lockstep.client with blocking methods: the same settings, results and errors. One serves all threads of a process.

    - It connects at its first send, or at `start()`. Sends of several threads share frames and connections. A send waits for the
      connection until its deadline, and fails as not stored; `start()` fails if no nameserver responds (`start_timeout_ms`), unless it has
      `start_in_background`.
    - `close()`, or the end of a `with`, waits for the sends in flight; so does the end of the program.
    - After a fork (gunicorn, uWSGI, Celery: with or without preloading) the child's first send starts it again, with connections of the
      child's own; the sends that the parent had in flight remain the parent's. A closed producer stays closed until it is started.
    - Ctrl-C during a send withdraws the message if it is not written yet, and raises KeyboardInterrupt at once.
    - A selector and hooks are called in the producer's own thread.
    - It can't be used in workers of gevent or eventlet: they turn threads into greenlets, in which no event loop can run.

    Args:
        group: The name of the producer group.
        nameserver: "HOST:PORT", several separated by ";", a list of them, or "lockstep://HOST:PORT/?tls_ca=FILE". Default: 127.0.0.1:9876.
        tls: Connect by TLS: True, or Tls(ca=FILE), which says what the client trusts and shows. Default: plain connections.
        user: The user to log in as. Default: that of the URL, or LOCKSTEP_USER, or none.
        password: The password, the Path of a file that has it, or a function that returns it; the latter two are asked at each login.
            Default: the URL's password or password_file, LOCKSTEP_PASSWORD, or the file that LOCKSTEP_PASSWORD_FILE names.
        login_optional: Go on with servers that ask for no login.

    The other arguments are the settings of ProducerConfig.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, or an address is invalid.
        LocalProtocolError: The group name is invalid.
        StateError: A method was called on an event loop, which it would block: use the asynchronous producer there.
    """

    @takes_arguments_of(ProducerArguments)
    def __init__(self, arguments: ProducerArguments) -> None:
        self.group = group = arguments.group
        self.config: ProducerConfig = arguments
        self._hooks: list[SendHook] = []

        settings = settings_of(arguments, ProducerConfig) | {"start_in_background": True}

        login: dict[str, Any] = {"user": arguments.user, "password": arguments.password, "login_optional": arguments.login_optional}

        def make() -> asynchronous.Producer:
            producer = self._kind(group, nameserver=arguments.nameserver, tls=arguments.tls, **login, **settings)
            self._prepare(producer)
            for hook in self._hooks:
                producer.add_hook(hook)
            return producer

        make()  # an invalid argument is raised here, not at the first send
        self._thread = LoopThread(f"producer {group}", make)

    _kind = asynchronous.Producer
    """The asynchronous producer that it runs."""

    def _prepare(self, producer: asynchronous.Producer) -> None:
        """Set up a new asynchronous producer."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self._thread.state}>"

    send = _blocking(asynchronous.Producer.send)
    """Send one message, as lockstep.client.Producer.send does."""
    send_batch = _blocking(asynchronous.Producer.send_batch)
    """Send many messages, as lockstep.client.Producer.send_batch does."""
    recall = _blocking(asynchronous.Producer.recall)
    """Take back a message that waits, as lockstep.client.Producer.recall does."""
    send_oneway = _blocking(asynchronous.Producer.send_oneway)
    """Write one message without waiting for a response, as lockstep.client.Producer.send_oneway does."""
    request = _blocking(asynchronous.Producer.request)
    """Send one message and wait for a consumer's reply, as lockstep.client.Producer.request does."""

    def start(self) -> None:
        """Connect now instead of at the first send, also after a `close`.

        Raises:
            TransportError: No nameserver responds, for `start_timeout_ms`. `start` may be called again.
            StateError: Another thread closed the producer meanwhile.
        """
        limit_ms = self.config.start_timeout_ms
        self._thread.start(None if self.config.start_in_background else lambda producer: producer._connect(limit_ms))

    def close(self) -> None:
        """Refuse further sends, wait until those in flight have ended (each has its deadline), and disconnect."""
        self._thread.close()

    def __enter__(self) -> "Producer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_hook(self, hook: SendHook) -> SendHook:
        """Call the hook before and after every send from now on, in the producer's own thread. Return the hook."""
        self._hooks.append(hook)
        self._thread.peek(lambda producer: producer.add_hook(hook), hook)
        return hook

    def health(self) -> ProducerHealth:
        """Return a snapshot of the producer's state, as lockstep.client.Producer.health does."""
        state = ProducerState.CLOSED if self._thread.state == "closed" else ProducerState.NEW
        return self._thread.peek(asynchronous.Producer.health, ProducerHealth(self.group, state, None, (), 0, 0, 0, 0))

    @property
    def possible_duplicates(self) -> int:
        """Return the number of messages that may be stored twice: unkeyed ones that failed over.

        Counted in this process.
        """
        return self._thread.peek(lambda producer: producer.possible_duplicates, 0)

    @property
    def in_flight_count(self) -> int:
        """Return the number of messages that are sent and not acknowledged."""
        return self._thread.peek(lambda producer: producer.in_flight_count, 0)

    @property
    def in_flight_bytes(self) -> int:
        """Return the number of bytes that are sent and not acknowledged, as the in-flight limit counts them."""
        return self._thread.peek(lambda producer: producer.in_flight_bytes, 0)


class Transaction:
    """A block whose messages are delivered when it has ended, as lockstep.client.Transaction is: `with producer.transaction() as tx`.

    Attributes:
        id: 32 hex digits, by which `check` is asked.
        status: How it has ended; None before that, UNKNOWN if no broker has confirmed it.
        results: After a commit, where each message is, in the order of the sends.
    """

    def __init__(self, thread: LoopThread[asynchronous.Producer]) -> None:
        self._thread = thread
        self._block: transactions.Transaction = thread.call(_new_block)

    @property
    def id(self) -> str:
        return self._block.id

    @property
    def status(self) -> TransactionStatus | None:
        return self._block.status

    @property
    def results(self) -> Sequence[SendResult]:
        return self._block.results

    def __repr__(self) -> str:
        return repr(self._block)

    def __enter__(self) -> "Transaction":
        self._thread.call(lambda _: self._block.__aenter__())
        return self

    def send(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store one message as a half message, as lockstep.client.Transaction.send does."""
        self._block.check_open()
        return self._thread.call(lambda _: self._block.send(message, selector=selector, queue=queue, timeout_ms=timeout_ms))

    def rollback(self) -> None:
        """End the transaction: its messages will never be delivered."""
        self._block.check_open()
        self._thread.call(lambda _: self._block.rollback())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._thread.call(lambda _: self._block.__aexit__(kind, error, trace))


class TransactionProducer(Producer):
    """The TransactionProducer of lockstep.client with blocking methods. `check` is called in a thread of its own.

        @producer.check
        def check(transaction_id: str, message: MessageExt) -> bool:
            with database.begin() as db:
                return marks.decide(db, transaction_id)

        with producer.transaction() as tx:
            tx.send(Message("orders", b"created"))
            with database.begin() as db:
                db.execute(insert_order)
                marks.set(db, tx.id)

    Call `start()` when the program starts: brokers ask only producers that are connected.
    """

    _kind = transactions.TransactionProducer
    _check: Check | None = None

    def check(self, function: C) -> C:
        """Have the function asked how a transaction has ended, as lockstep.client.TransactionProducer.check does. Return it."""
        self._check = function
        self._thread.peek(lambda producer: _set_check(producer, function), None)
        return function

    def transaction(self) -> Transaction:
        """Return a new transaction, whose block begins with `with`."""
        return Transaction(self._thread)

    def _prepare(self, producer: asynchronous.Producer) -> None:
        if self._check is not None:
            _set_check(producer, self._check)


async def _new_block(producer: asynchronous.Producer) -> transactions.Transaction:
    assert isinstance(producer, transactions.TransactionProducer)
    return producer.transaction()


def _set_check(producer: asynchronous.Producer, function: Check) -> None:
    assert isinstance(producer, transactions.TransactionProducer)
    producer.check(function)
