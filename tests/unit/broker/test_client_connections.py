"""What the broker keeps of HEART_BEATs for RocketMQ's tools."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.broker.classic.connections import GROUP_LENGTH_MAX, ClientConnections
from lockstep.broker.groups.tables.session_table import SessionTable
from lockstep.protocol.bodies import ConsumerGroup, ConsumeType, HeartbeatBody, ProducerGroup
from lockstep.protocol.command import JSON, MSGPACK, Command
from lockstep.runtime.requests.request import Request


class Connection:
    """The end of a connection, as far as ClientConnections uses it."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.peer = f"10.0.0.{id}:1"
        self.closed = False
        self.on_close: list[Any] = []

    def close(self) -> None:
        self.closed = True
        for callback in self.on_close:
            callback(self, "closed")


class Bench:
    def __init__(self) -> None:
        state = SimpleNamespace(sessions=SessionTable(grace_ms=1, timeout_ms=1))
        self.connections = ClientConnections(cast(Any, SimpleNamespace(state=state)))

    def beat(self, connection: Connection, client_id: str = "c", *producers: str, codec: int = JSON, **given: Any) -> None:
        language = given.pop("language", "JAVA")
        request = Request(Command(34, version=317, codec=codec, language=language), cast(Any, connection))
        self.connections.record(request, HeartbeatBody(client_id, producers=tuple(map(ProducerGroup, producers)), **given), 7)

    def known(self) -> list[tuple[str, str, int, tuple[str, ...]]]:
        return [(each.client_id, each.language, each.version, each.producers) for each in self.connections]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_last_heartbeat_of_a_connection_counts(bench: Bench) -> None:
    connection = Connection(1)
    group = ConsumerGroup("cg", (), consume_type=ConsumeType.CONSUME_ACTIVELY)
    bench.beat(connection, "c", "pg", consumers=(group,))
    (client,) = bench.connections
    assert client.consumers["cg"].consume_type is ConsumeType.CONSUME_ACTIVELY
    bench.beat(connection, "renamed", "other")
    assert bench.known() == [("renamed", "JAVA", 317, ("other",))]
    assert bench.connections.producer("c") is None
    assert bench.connections.producers("pg") == []
    assert bench.connections.peer(1) == "10.0.0.1:1"
    assert len(connection.on_close) == 1
    connection.close()
    assert (bench.known(), bench.connections.peer(1), bench.connections.producer("renamed")) == ([], "", None)


@pytest.mark.parametrize(
    ("language", "codec", "kept"),
    [("GO", JSON, "GO"), ("COBOL" * 1_000, JSON, "OTHER"), (77, JSON, "OTHER"), (None, JSON, "OTHER"), (None, MSGPACK, "PYTHON")],
)
def test_language_is_one_that_rocketmqs_tools_know(bench: Bench, language: str | int | None, codec: int, kept: str) -> None:
    bench.beat(Connection(1), language=language, codec=codec)
    assert [each.language for each in bench.connections] == [kept]


def test_newest_open_connection_of_a_producer_gets_replies(bench: Bench) -> None:
    older, newer, consumer = Connection(1), Connection(2), Connection(3)
    bench.beat(older, "c", "pg")
    bench.beat(newer, "c", "pg")
    bench.beat(consumer, "c")

    def found() -> object:
        client = bench.connections.producer("c")
        return None if client is None else client.endpoint

    assert found() is newer
    newer.closed = True  # its callbacks have not run yet
    assert found() is older
    newer.close()
    older.close()
    assert found() is None


def test_client_of_the_sdk_gets_replies_before_a_heartbeat_names_its_producer(bench: Bench) -> None:
    connection = Connection(1)
    bench.beat(connection, "c", codec=MSGPACK)
    client = bench.connections.producer("c")
    assert client is not None
    assert client.endpoint is connection
    connection.close()
    assert bench.connections.producer("c") is None


def test_name_that_no_producer_group_may_have_is_not_kept(bench: Bench) -> None:
    bench.beat(Connection(1), "c", "p" * GROUP_LENGTH_MAX, "p" * (GROUP_LENGTH_MAX + 1))
    assert bench.known()[0][3] == ("p" * GROUP_LENGTH_MAX,)
