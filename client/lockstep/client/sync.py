"""A producer for programs that block: Flask, Django, scripts. It runs the asynchronous producer in a thread of its own.

producer = Producer("shop", nameserver="10.0.0.5:9876")       # at import time: nothing is connected yet

def view(request):
    producer.send(Message("orders", b"created", sharding_key="1001"))
"""

import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from lockstep.client.config import GroupArguments
from lockstep.client.life import OfOneProcess
from lockstep.client.producer import producer as asynchronous
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.health import ProducerHealth, ProducerState
from lockstep.client.producer.hooks import SendHook
from lockstep.client.settings import settings_of, takes_arguments_of
from lockstep.runtime.loop_thread import LoopThread

__all__ = ["Producer"]

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
            producer = asynchronous.Producer(group, nameserver=arguments.nameserver, tls=arguments.tls, **login, **settings)
            for hook in self._hooks:
                producer.add_hook(hook)
            return producer

        make()  # an invalid argument is raised here, not at the first send
        self._thread = LoopThread(f"producer {group}", make)

    def __repr__(self) -> str:
        return f"<Producer {self.group} {self._thread.state}>"

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
