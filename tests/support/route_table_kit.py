"""Registrations of brokers for tests of the nameserver's table."""

from lockstep.nameserver.broker_record import Registration
from lockstep.nameserver.route_table import (
    RouteTable,
)
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout

STORE_A, STORE_B = "a" * 32, "b" * 32

PROOF = "c" * 32


def layout(topic: str = "orders", counter: int = 1, writer: int = 7, brokers: tuple[str, ...] = ("broker-a",)) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, writer), tuple(LayoutEntry(name, 4, 4, counter) for name in brokers))


def broker_registration(
    name: str = "broker-a",
    *,
    store: str = STORE_A,
    term: int = 10,
    port: int = 1,
    layouts: tuple[TopicLayout, ...] = (),
    proof: str = PROOF,
    previous: int | None = None,
    part: int = 0,
    parts: int = 1,
    office: bool = False,
    replicas: tuple[str, ...] = (),
    tried: tuple[int, ...] = (),
) -> Registration:
    listeners = {"internal": f"10.0.0.{port}:10911", "external": f"localhost:{port}"}
    previous_term = term - 1 if previous is None else previous
    given = name, "DefaultCluster", store, term, listeners, layouts, proof, previous_term, part, parts
    return Registration(*given, replicas=replicas, office=office, tried=tried)


def registered(table: RouteTable, listener: str = "internal") -> dict[str, bool]:
    return {broker.name: broker.registered for broker in table.brokers(listener)}
