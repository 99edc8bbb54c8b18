"""A topic is ended by brokers that have or had queues of it, and by all others while no broker with queues is registered."""

from dataclasses import replace

import pytest

from lockstep.nameserver.route_table import RegistrationResult, RouteTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.route_table_kit import STORE_B, broker_registration, layout

KNOWN = replace(layout(), entries=(LayoutEntry("broker-a", 4, 4, 1), LayoutEntry("drained", 0, 0, 1)))
STRANGER = "stranger"
ENDS = {"deletion": KNOWN.deletion, "later creation": TopicLayout("orders", LayoutVersion(3, 7), (LayoutEntry(STRANGER, 1, 1, 3),))}


def of(name: str, *layouts: TopicLayout) -> RouteTable:
    """Return a table in which the owner is registered, and then this broker with these layouts."""
    table = RouteTable()
    table.register(broker_registration(layouts=(KNOWN,)), 1, 0)
    register(table, name, *layouts)
    return table


def register(table: RouteTable, name: str, *layouts: TopicLayout) -> RegistrationResult:
    if name == "broker-a":
        return table.register(broker_registration(layouts=layouts), 1, 1)
    return table.register(broker_registration(name, store=STORE_B, port=2, layouts=layouts), 2, 1)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_broker_that_never_had_a_queue_of_a_topic_does_not_end_it_while_an_owner_is_registered(end: TopicLayout) -> None:
    table = of(STRANGER, KNOWN)
    change = register(table, STRANGER, end)
    (refused,) = change.refused
    assert refused.reason == (
        "topic orders: broker 'stranger' never had a queue of it, so its deletion takes effect when a broker that has queues registers it "
        "too, or when none of them is registered: broker-a"
    )
    assert (change.adopted, change.missing, change.routed) == ((), (), True), "the broker is registered with its other layouts"
    assert table.layouts.get("orders") == KNOWN


@pytest.mark.parametrize("name", ["broker-a", "drained"])
def test_broker_that_has_or_had_queues_deletes_a_topic(name: str) -> None:
    assert of(name, KNOWN.deletion).layouts.get("orders") == KNOWN.deletion


def test_deletion_takes_effect_when_an_owner_registers_it_too() -> None:
    table = of(STRANGER, KNOWN.deletion)
    assert register(table, "broker-a", KNOWN.deletion).adopted == ("orders",)
    again = register(table, STRANGER, KNOWN.deletion)
    assert (again.refused, again.missing) == ((), ())


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_anyone_ends_a_topic_whose_owners_are_away(end: TopicLayout) -> None:
    """An operator deletes a topic while its broker is down: the broker learns it when it is back."""
    table = of(STRANGER)
    table.connection_closed(1, 0)
    assert register(table, STRANGER, end).adopted == ("orders",)
    assert register(table, "broker-a", KNOWN).missing == (end,)


def test_broker_that_had_no_queue_alters_a_topic() -> None:
    """An alteration gives it its first queues, and it may register before the others."""
    altered = KNOWN.with_queues(STRANGER, 2, 2, 7)
    assert of(STRANGER, altered).layouts.get("orders") == altered


def test_broker_creates_a_deleted_topic_again() -> None:
    table = of("broker-a", KNOWN.deletion)
    created = TopicLayout("orders", LayoutVersion(3, 7), (LayoutEntry(STRANGER, 1, 1, 3),))
    assert register(table, STRANGER, created).adopted == ("orders",)
