"""The blocking producer is the asynchronous one, seen from a thread."""

import inspect
import subprocess
import sys

import pytest

from lockstep.client import ConfigError, LocalProtocolError, Message, StateError, TransportError
from lockstep.client import Producer as Asynchronous
from lockstep.client.sync import Producer

NOBODY = "127.0.0.1:1"


def parameters(method: object) -> dict[str, tuple[object, object]]:
    signature = inspect.signature(method)  # type: ignore[arg-type]
    return {name: (one.default, one.kind) for name, one in signature.parameters.items()}


@pytest.mark.parametrize("name", ["send", "send_batch", "send_oneway", "start", "close", "add_hook"])
def test_the_methods_have_the_same_arguments_and_defaults(name: str) -> None:
    assert parameters(getattr(Producer, name)) == parameters(getattr(Asynchronous, name))


def test_it_has_the_same_settings() -> None:
    asynchronous = parameters(Asynchronous)
    assert parameters(Producer) == {name: found for name, found in asynchronous.items() if name not in ("client", "host", "given_id")}


def test_a_wrong_setting_is_reported_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="send_timeout_ms"):
        Producer("shop", send_timeout_ms=0)
    with pytest.raises(ConfigError, match="nameserver address"):
        Producer("shop", nameserver="nowhere")
    with pytest.raises(LocalProtocolError, match="group"):
        Producer("a group")
    with pytest.raises(TypeError, match="did you mean 'send_timeout_ms'"):
        Producer("shop", send_timeout=1)  # type: ignore[call-arg]


def test_making_one_and_forgetting_it_starts_nothing() -> None:
    made = "from lockstep.client.sync import Producer; import threading; p = Producer('shop'); print(p, threading.active_count())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", made], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("<Producer shop new> 1\n", "")


def test_without_a_cluster_every_send_says_so_and_may_be_tried_again() -> None:
    producer = Producer("shop", nameserver=NOBODY)
    for _ in range(2):
        with pytest.raises(TransportError, match=NOBODY):
            producer.send(Message("orders", b"x"))
    assert (producer.in_flight_count, producer.in_flight_bytes, producer.possible_duplicates) == (0, 0, 0)
    producer.close()
    with pytest.raises(StateError, match="producer shop is closed"):
        producer.send(Message("orders", b"x"))


async def test_on_an_event_loop_it_refuses_to_block() -> None:
    with pytest.raises(StateError, match="this thread runs an event loop"):
        Producer("shop", nameserver=NOBODY).send(Message("orders", b"x"))
