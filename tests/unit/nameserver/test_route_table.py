"""RouteTable: registrations, routes, layouts, silence and forgetting."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.nameserver.broker_record import Registration
from lockstep.nameserver.route_table import (
    BROKERS_MAX,
    CHALLENGE_MS,
    FORGET_MS,
    RouteTable,
)
from lockstep.nameserver.topic_quota import SILENCE_MS
from lockstep.protocol.errors import BrokerNameTakenError, RegistrationPendingError, RemoteProtocolError, ServiceNotAvailableError
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.route_table_kit import STORE_A, STORE_B, broker_registration, layout, registered


def test_first_registration_is_routed_with_its_topics() -> None:
    table = RouteTable()
    change = table.register(broker_registration(layouts=(layout(),)), 1, 0)
    assert (change.joined, change.routed, change.missing, change.adopted, change.superseded) == (True, True, (), ("orders",), None)
    route = table.route("orders", "internal", 0)
    assert route is not None
    assert route.layout == layout()
    assert [(b.name, b.address, b.registered, b.term, b.cluster) for b in route.brokers] == [
        ("broker-a", "10.0.0.1:10911", True, 10, "DefaultCluster")
    ]


def test_table_is_ready_from_the_first_registration_on() -> None:
    table = RouteTable()
    assert not table.ready
    table.register(broker_registration(), 1, 0)
    assert table.ready
    table.connection_closed(1, 0)
    assert table.ready


def test_rejected_registration_changes_nothing() -> None:
    table = RouteTable()
    with pytest.raises(RemoteProtocolError, match="internal"):
        table.register(Registration("broker-a", "c", STORE_A, 1, {"external": "h:1"}, (layout(),), "c" * 32, 0), 1, 0)
    assert not table.ready
    assert table.layouts.get("orders") is None


def test_invalid_layout_is_rejected_by_name_and_the_others_are_adopted() -> None:
    table = RouteTable()
    huge = TopicLayout("huge", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1 << 40, 1 << 40, 1),))
    change = table.register(broker_registration(layouts=(layout(), huge)), 1, 0)
    assert [(refused.topic, "1099511627776 queues" in refused.reason) for refused in change.refused] == [("huge", True)]
    assert (change.adopted, change.missing, change.routed) == (("orders",), (), True)
    assert table.layouts.all() == (layout(),)


def test_layout_beyond_the_limit_of_entries_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.nameserver.route_table.ENTRIES_MAX", 3)
    table = RouteTable()
    many = layout("many", brokers=("broker-a", "broker-b"))
    change = table.register(
        broker_registration(layouts=(many, layout("one"), layout("refused"), TopicLayout("deleted", LayoutVersion(2, 7), ()))), 1, 0
    )
    assert [(left_out.topic, "maximum of 3 entries" in left_out.reason) for left_out in change.refused] == [("refused", True)]
    assert (change.adopted, change.routed, table.layouts.entry_count) == (("many", "one", "deleted"), True, 3)
    grown = layout("one", 2, brokers=("broker-a", "broker-b"))
    assert [left_out.topic for left_out in table.register(broker_registration(layouts=(grown,)), 1, 1).refused] == ["one"]
    assert table.layouts.get("one") == layout("one")
    fewer = layout("many", 2, brokers=("broker-b",))
    assert table.register(broker_registration(layouts=(fewer, grown)), 1, 2).refused == (), "what makes room counts at once"


def test_older_layout_of_a_rejected_one_is_not_sent_to_the_broker() -> None:
    """The broker would not adopt it, and so would never be accepted."""
    table = RouteTable()
    table.register(broker_registration(layouts=(layout(),)), 1, 0)
    huge = TopicLayout("orders", LayoutVersion(2, 7), (LayoutEntry("broker-a", 1 << 40, 1 << 40, 1),))
    change = table.register(broker_registration(layouts=(huge,)), 1, 1)
    assert (len(change.refused), change.missing) == (1, ())
    assert table.layouts.get("orders") == layout()


def test_route_has_addresses_of_the_requested_listener_or_internal() -> None:
    table = RouteTable()
    table.register(broker_registration(layouts=(layout(),)), 1, 0)
    for listener, address in {"internal": "10.0.0.1:10911", "external": "localhost:1", "other": "10.0.0.1:10911"}.items():
        route = table.route("orders", listener, 0)
        assert route is not None
        assert route.brokers[0].address == address
        assert table.brokers(listener)[0].address == address


def test_closed_connection_unregisters_at_once_and_keeps_the_last_address() -> None:
    table = RouteTable()
    table.register(broker_registration(layouts=(layout(),)), 1, 0)
    assert table.connection_closed(2, 0) == ()
    assert registered(table) == {"broker-a": True}
    assert table.connection_closed(1, 0) == ("broker-a",)
    route = table.route("orders", "external", 0)
    assert route is not None
    assert route.layout == layout()
    assert [(b.address, b.registered) for b in route.brokers] == [("localhost:1", False)]
    assert table.registered() == ()


def test_only_the_newest_connection_of_a_broker_counts() -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 0)
    change = table.register(broker_registration(), 2, 5)
    assert (change.joined, change.superseded) == (False, 1)
    assert table.connection_closed(1, 0) == ()
    assert registered(table) == {"broker-a": True}
    assert table.connection_closed(2, 0) == ("broker-a",)


def test_one_connection_may_register_several_brokers() -> None:
    table = RouteTable()
    table.register(broker_registration("broker-a"), 1, 0)
    table.register(broker_registration("broker-b", store=STORE_B), 1, 0)
    assert table.connection_closed(1, 0) == ("broker-a", "broker-b")


@pytest.mark.parametrize(("after", "silent"), [(SILENCE_MS - 1, False), (SILENCE_MS, True), (SILENCE_MS + 1, True)])
def test_silent_broker_is_unregistered_exactly_at_the_timeout(after: int, silent: bool) -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 1_000)
    table.register(broker_registration(), 1, 5_000)
    assert table.expire(5_000 + after) == ({"broker-a": 1} if silent else {})
    assert registered(table) == {"broker-a": not silent}
    assert table.expire(5_000 + after + SILENCE_MS) == ({} if silent else {"broker-a": 1})


def test_broker_is_routed_after_it_has_adopted_missing_layouts() -> None:
    table = RouteTable()
    table.register(broker_registration("broker-a", layouts=(layout(brokers=("broker-a", "broker-b")),)), 1, 0)
    learning = table.register(broker_registration("broker-b", store=STORE_B, port=2), 2, 0)
    assert (learning.routed, learning.missing) == (False, (layout(brokers=("broker-a", "broker-b")),))
    route = table.route("orders", "internal", 0)
    assert route is not None
    assert [(b.name, b.registered) for b in route.brokers] == [("broker-a", True), ("broker-b", False)]
    complete = table.register(broker_registration("broker-b", store=STORE_B, port=2, layouts=learning.missing), 2, 1)
    assert (complete.routed, complete.missing, complete.joined) == (True, (), False)
    assert registered(table) == {"broker-a": True, "broker-b": True}


def test_routed_broker_stays_routed_while_it_adopts_a_new_topic() -> None:
    table = RouteTable()
    table.register(broker_registration("broker-a"), 1, 0)
    table.register(broker_registration("broker-b", store=STORE_B, port=2), 2, 0)
    table.register(broker_registration("broker-a", layouts=(layout(),)), 1, 1)
    assert table.register(broker_registration("broker-b", store=STORE_B, port=2), 2, 2).missing == (layout(),)
    assert registered(table) == {"broker-a": True, "broker-b": True}


def test_broker_restarted_without_a_layout_is_routed_after_it_has_adopted_it() -> None:
    table = RouteTable()
    table.register(broker_registration(term=10, layouts=(layout(),)), 1, 0)
    table.connection_closed(1, 0)
    assert not table.register(broker_registration(term=11), 2, 1).routed
    assert registered(table) == {"broker-a": False}
    assert table.register(broker_registration(term=11, layouts=(layout(),)), 2, 2).routed


def test_deleted_topic_has_no_route_and_its_deletion_is_sent_to_brokers_that_lack_it() -> None:
    table = RouteTable()
    table.register(broker_registration(layouts=(layout(),)), 1, 0)
    gone = replace(layout(), version=LayoutVersion(2, 1), entries=())
    table.register(broker_registration(layouts=(gone,)), 1, 1)
    assert table.route("orders", "internal", 0) is None
    assert table.register(broker_registration("broker-b", store=STORE_B, port=2, layouts=(layout(),)), 2, 2).missing == (gone,)


def test_broker_of_a_layout_that_never_registered_has_no_address() -> None:
    table = RouteTable()
    table.register(broker_registration(layouts=(layout(brokers=("broker-a", "broker-b")),)), 1, 0)
    route = table.route("orders", "internal", 0)
    assert route is not None
    assert [b.name for b in route.brokers] == ["broker-a"]
    assert {q.broker_name for q in route.layout.write_queues} == {"broker-a", "broker-b"}


def test_empty_nameserver_learns_every_layout_from_one_registration() -> None:
    old, new = RouteTable(), RouteTable()
    everything = (
        layout("orders", brokers=("broker-a", "broker-b")),
        layout("bills", brokers=("broker-b",)),
        layout("cards", brokers=("broker-c",)),
    )
    old.register(broker_registration("broker-a", layouts=everything[:1]), 1, 0)
    old.register(broker_registration("broker-b", store=STORE_B, layouts=everything[1:]), 2, 0)
    learned = old.register(broker_registration("broker-a", layouts=everything[:1]), 1, 1).missing
    new.register(broker_registration("broker-a", layouts=everything[:1] + learned), 1, 0)
    assert new.ready
    assert {one.topic: one for one in new.layouts.all()} == {one.topic: one for one in everything}


def test_route_tables_share_no_state() -> None:
    one, other = RouteTable(), RouteTable()
    one.register(broker_registration(layouts=(layout(),)), 1, 0)
    assert other.route("orders", "internal", 0) is None
    assert not other.ready
    other.register(broker_registration(store=STORE_B, port=2), 1, 0)
    assert one.brokers("internal")[0].address == "10.0.0.1:10911"


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("register"),
            st.sampled_from(["broker-a", "broker-b"]),
            st.sampled_from([STORE_A, STORE_B]),
            st.integers(1, 3),
            st.integers(1, 4),
        ),
        st.tuples(st.just("close"), st.integers(1, 4)),
        st.tuples(st.just("response"), st.sampled_from(["broker-a", "broker-b"]), st.integers(1, 4)),
        st.tuples(
            st.just("unregister"),
            st.sampled_from(["broker-a", "broker-b"]),
            st.sampled_from([STORE_A, STORE_B]),
            st.integers(1, 3),
            st.integers(1, 4),
        ),
        st.tuples(st.just("wait"), st.one_of(st.integers(0, 2 * CHALLENGE_MS), st.integers(0, SILENCE_MS))),
    ),
    max_size=30,
)


@given(EVENTS)
def test_registered_broker_was_heard_on_its_open_connection_within_the_timeout(events: list[tuple[object, ...]]) -> None:
    table, now = RouteTable(), 0
    heard: dict[str, tuple[int, int, str, int]] = {}
    for event in events:
        match event:
            case ("register", str(name), str(store), int(term), int(connection)):
                try:
                    table.register(broker_registration(name, store=store, term=term, port=1), connection, now)
                    heard[name] = (connection, now, store, term)
                except (BrokerNameTakenError, RegistrationPendingError):
                    assert name in heard, "nobody had this name"
            case ("close", int(connection)):
                gone = table.connection_closed(connection, 0)
                assert all(heard[name][0] == connection for name in gone)
            case ("unregister", str(name), str(store), int(term), int(connection)):
                if table.unregister(name, store, term, connection, 0):
                    assert (heard[name][0], *heard[name][2:]) == (connection, store, term)
            case ("response", str(name), int(connection)):
                table.confirm_alive(name, connection, now)
            case ("wait", int(ms)):
                now += ms
                table.count_down_challenges(ms)
                for name, connection in table.expire(now).items():
                    assert (heard[name][0], now - heard[name][1] >= SILENCE_MS) == (connection, True)
        for name in table.registered():
            assert now - heard[name][1] < SILENCE_MS
        assert set(registered(table)) == set(heard), "a name that was routed stays known for a week"


def unrouted(name: str) -> Registration:
    """Register a broker that lacks the stored layout, so that it is learning."""
    return broker_registration(name, store=STORE_B, port=2)


def test_broker_never_routed_is_forgotten_with_its_connection() -> None:
    table = RouteTable()
    table.register(broker_registration(layouts=(layout(),)), 1, 0)
    assert not table.register(unrouted("stranger"), 2, 0).routed
    assert table.connection_closed(2, 0) == ("stranger",)
    assert registered(table) == {"broker-a": True}


@pytest.mark.parametrize(("named_ms", "left_ms"), [(0, 0), (0, 5_000), (9_000, 5_000)])
def test_routed_broker_is_forgotten_seven_days_after_its_last_use(named_ms: int, left_ms: int) -> None:
    table = RouteTable()
    table.register(broker_registration(layouts=(layout(),)), 1, left_ms)
    table.connection_closed(1, 0)
    if named_ms:
        table.route("orders", "internal", named_ms)
    last_ms = max(named_ms, left_ms)
    table.expire(last_ms + FORGET_MS - 1)
    assert registered(table) == {"broker-a": False}
    table.expire(last_ms + FORGET_MS)
    assert registered(table) == {}
    route = table.route("orders", "internal", last_ms + FORGET_MS)
    assert route is not None
    assert route.brokers == ()


def test_registered_broker_is_never_forgotten() -> None:
    table = RouteTable(silence_ms=FORGET_MS * 9)
    table.register(broker_registration(layouts=(layout(),)), 1, 0)
    table.expire(FORGET_MS * 2)
    assert registered(table) == {"broker-a": True}


def test_table_holds_1024_brokers_and_evicts_only_unregistered_unused_ones() -> None:
    table = RouteTable()
    for number in range(BROKERS_MAX):
        table.register(broker_registration(f"b-{number}", layouts=(layout(brokers=("b-1",)),)), number, number)
    with pytest.raises(ServiceNotAvailableError, match=r"'one-more' .* knows 1024 brokers"):
        table.register(broker_registration("one-more"), 5_000, 5_000)
    table.connection_closed(1, 0)
    table.route("orders", "internal", 5_000)
    with pytest.raises(ServiceNotAvailableError):
        table.register(broker_registration("one-more"), 5_000, 5_000)
    for gone in (7, 5):
        table.connection_closed(gone, 0)
    table.register(broker_registration("one-more"), 5_000, 5_000)
    assert set(registered(table)) == {"one-more", *(f"b-{number}" for number in range(BROKERS_MAX) if number != 5)}
