"""The blocking producer has the API of the asynchronous one, for threads."""

import inspect
import subprocess
import sys
import threading

import pytest

from lockstep.client import ConfigError, LocalProtocolError, Message, Outcome, ProducerState, SendError, StateError, TransportError
from lockstep.client import Producer as Asynchronous
from lockstep.client.sync import Producer

UNUSED_ADDRESS = "127.0.0.1:1"


def parameters(method: object) -> dict[str, tuple[object, object]]:
    signature = inspect.signature(method)  # type: ignore[arg-type]
    return {name: (one.default, one.kind) for name, one in signature.parameters.items()}


@pytest.mark.parametrize("name", ["send", "send_batch", "recall", "request", "send_oneway", "start", "close", "add_hook", "health"])
def test_blocking_methods_have_the_signatures_of_the_asynchronous_ones(name: str) -> None:
    assert parameters(getattr(Producer, name)) == parameters(getattr(Asynchronous, name))


def test_blocking_producer_has_the_same_settings() -> None:
    asynchronous = parameters(Asynchronous)
    assert parameters(Producer) == {name: found for name, found in asynchronous.items() if name not in ("client", "host", "given_id")}


def test_blocking_producer_rejects_invalid_settings_in_its_constructor() -> None:
    with pytest.raises(ConfigError, match="send_timeout_ms"):
        Producer("shop", send_timeout_ms=0)
    with pytest.raises(ConfigError, match="nameserver address"):
        Producer("shop", nameserver="nowhere")
    with pytest.raises(LocalProtocolError, match="group"):
        Producer("a group")
    with pytest.raises(TypeError, match="did you mean 'send_timeout_ms'"):
        Producer("shop", send_timeout=1)  # type: ignore[call-arg]


def test_unused_blocking_producer_starts_no_thread() -> None:
    made = "from lockstep.client.sync import Producer; import threading; p = Producer('shop'); print(p, threading.active_count())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", made], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("<Producer shop new> 1\n", "")


def test_blocking_send_without_a_cluster_fails_at_its_deadline_as_not_stored_and_can_be_repeated() -> None:
    producer = Producer("shop", nameserver=UNUSED_ADDRESS)
    assert producer.health().state is ProducerState.NEW
    for sending in (
        lambda: producer.send(Message("orders", b"x"), timeout_ms=300),
        lambda: producer.send(Message("orders", b"x", sharding_key="k"), timeout_ms=300),
        lambda: producer.send_batch([Message("orders", b"x")], timeout_ms=300),
        lambda: producer.request(Message("orders", b"x"), timeout_ms=300),
    ):
        with pytest.raises(SendError, match=rf"{UNUSED_ADDRESS}: connection refused.*the message is not stored") as failed:
            sending()
        assert failed.value.outcome is Outcome.NOT_STORED
    health = producer.health()
    assert (health.state, health.alive, health.ok) == (ProducerState.STARTING, True, False)
    assert health.awaited is not None
    assert UNUSED_ADDRESS in health.awaited
    assert (producer.in_flight_count, producer.in_flight_bytes, producer.possible_duplicates) == (0, 0, 0)
    producer.close()
    assert producer.health().state is ProducerState.CLOSED
    with pytest.raises(StateError, match="producer shop is closed"):
        producer.send(Message("orders", b"x"))


def test_blocking_start_without_a_cluster_raises_and_leaves_no_thread() -> None:
    before = threading.active_count()
    producer = Producer("shop", nameserver=UNUSED_ADDRESS)
    for _ in range(2):
        with pytest.raises(TransportError, match=UNUSED_ADDRESS), producer:
            pass
        assert (repr(producer), threading.active_count()) == ("<Producer shop new>", before)


def test_blocking_start_in_the_background_returns_without_a_cluster() -> None:
    with Producer("shop", nameserver=UNUSED_ADDRESS, start_in_background=True) as producer:
        assert producer.health().state is ProducerState.STARTING
    assert producer.health().state is ProducerState.CLOSED


async def test_blocking_send_on_an_event_loop_raises() -> None:
    with pytest.raises(StateError, match="this thread runs an event loop"):
        Producer("shop", nameserver=UNUSED_ADDRESS).send(Message("orders", b"x"))
