"""RouteTable holds the nameserver's law: design page `wire`, last paragraph."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.nameserver.route_table import SILENCE_MS, Registration, RouteTable
from lockstep.protocol.errors import BrokerNameTaken, RemoteProtocolError
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout

STORE_A, STORE_B = "a" * 32, "b" * 32


def layout(topic: str = "orders", counter: int = 1, writer: int = 7, brokers: tuple[str, ...] = ("broker-a",)) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, writer), tuple(LayoutEntry(name, 4, 4, counter) for name in brokers))


def said(
    name: str = "broker-a", *, store: str = STORE_A, term: int = 10, port: int = 1, layouts: tuple[TopicLayout, ...] = ()
) -> Registration:
    listeners = {"internal": f"10.0.0.{port}:10911", "external": f"localhost:{port}"}
    return Registration(name, "DefaultCluster", store, term, listeners, layouts)


def registered(table: RouteTable, listener: str = "internal") -> dict[str, bool]:
    return {broker.name: broker.registered for broker in table.brokers(listener)}


def test_the_first_registration_is_routed_with_its_topics() -> None:
    table = RouteTable()
    change = table.register(said(layouts=(layout(),)), 1, 0)
    assert (change.joined, change.routed, change.missing, change.adopted, change.superseded) == (True, True, (), ("orders",), None)
    route = table.route("orders", "internal")
    assert route is not None
    assert route.layout == layout()
    assert [(b.name, b.address, b.registered, b.term, b.cluster) for b in route.brokers] == [
        ("broker-a", "10.0.0.1:10911", True, 10, "DefaultCluster")
    ]


def test_nothing_is_ready_before_the_first_registration_and_everything_after_it_for_ever() -> None:
    table = RouteTable()
    assert not table.ready
    table.register(said(), 1, 0)
    assert table.ready
    table.connection_closed(1)
    assert table.ready


def test_a_refused_registration_makes_nothing_ready_and_changes_nothing() -> None:
    table = RouteTable()
    with pytest.raises(RemoteProtocolError, match="internal"):
        table.register(Registration("broker-a", "c", STORE_A, 1, {"external": "h:1"}, (layout(),)), 1, 0)
    assert not table.ready
    assert table.layouts.get("orders") is None


def test_a_layout_that_can_not_be_refuses_the_whole_registration() -> None:
    """Every broker would adopt it, and every client would build its queues."""
    table = RouteTable()
    huge = TopicLayout("huge", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1 << 40, 1 << 40, 1),))
    with pytest.raises(RemoteProtocolError, match=r"'broker-a' registers a layout .* topic huge: 1099511627776 queues"):
        table.register(said(layouts=(layout(), huge)), 1, 0)
    assert (table.ready, table.layouts.all(), table.registered()) == (False, (), ())


def test_a_name_is_answered_by_the_listener_that_was_asked_else_by_internal() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, 0)
    for listener, address in {"internal": "10.0.0.1:10911", "external": "localhost:1", "other": "10.0.0.1:10911"}.items():
        route = table.route("orders", listener)
        assert route is not None
        assert route.brokers[0].address == address
        assert table.brokers(listener)[0].address == address


def test_the_close_of_the_registering_connection_unregisters_at_once_and_keeps_the_last_address() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, 0)
    assert table.connection_closed(2) == ()
    assert registered(table) == {"broker-a": True}
    assert table.connection_closed(1) == ("broker-a",)
    route = table.route("orders", "external")
    assert route is not None
    assert route.layout == layout()
    assert [(b.address, b.registered) for b in route.brokers] == [("localhost:1", False)]
    assert table.registered() == ()


def test_only_the_newest_connection_speaks_for_a_broker() -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    change = table.register(said(), 2, 5)
    assert (change.joined, change.superseded) == (False, 1)
    assert table.connection_closed(1) == ()
    assert registered(table) == {"broker-a": True}
    assert table.connection_closed(2) == ("broker-a",)


def test_one_connection_may_speak_for_several_brokers() -> None:
    table = RouteTable()
    table.register(said("broker-a"), 1, 0)
    table.register(said("broker-b", store=STORE_B), 1, 0)
    assert table.connection_closed(1) == ("broker-a", "broker-b")


@pytest.mark.parametrize(("after", "silent"), [(SILENCE_MS - 1, False), (SILENCE_MS, True), (SILENCE_MS + 1, True)])
def test_silence_unregisters_exactly_at_its_limit(after: int, silent: bool) -> None:
    table = RouteTable()
    table.register(said(), 1, 1_000)
    table.register(said(), 1, 5_000)
    assert table.expire(5_000 + after) == ({"broker-a": 1} if silent else {})
    assert registered(table) == {"broker-a": not silent}
    assert table.expire(5_000 + after + SILENCE_MS) == ({} if silent else {"broker-a": 1})


def test_a_goodbye_counts_only_for_the_store_term_and_connection_that_are_registered() -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    assert not table.unregister("broker-x", STORE_A, 10, 1)
    assert not table.unregister("broker-a", STORE_B, 10, 1)
    assert not table.unregister("broker-a", STORE_A, 9, 1)
    assert not table.unregister("broker-a", STORE_A, 10, 2)
    assert registered(table) == {"broker-a": True}
    assert table.unregister("broker-a", STORE_A, 10, 1)
    assert registered(table) == {"broker-a": False}
    assert not table.unregister("broker-a", STORE_A, 10, 1)


def test_a_live_name_with_another_store_is_refused_with_both_addresses_named() -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    with pytest.raises(BrokerNameTaken) as refused:
        table.register(said(store=STORE_B, term=99, port=2, layouts=(layout("stolen"),)), 2, 1)
    assert "10.0.0.1:10911" in str(refused.value)
    assert "10.0.0.2:10911" in str(refused.value)
    assert table.layouts.get("stolen") is None
    assert table.brokers("internal")[0].address == "10.0.0.1:10911"
    assert table.connection_closed(2) == ()


def test_a_name_that_is_not_live_may_be_taken_by_another_store() -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    table.connection_closed(1)
    assert table.register(said(store=STORE_B, term=3, port=2), 2, 1).joined
    assert [(b.address, b.term) for b in table.brokers("internal")] == [("10.0.0.2:10911", 3)]


@pytest.mark.parametrize("live", [True, False])
def test_a_copied_store_is_refused_by_its_lower_term_whether_or_not_the_other_lives(live: bool) -> None:
    table = RouteTable()
    table.register(said(term=10), 1, 0)
    if not live:
        table.connection_closed(1)
    with pytest.raises(BrokerNameTaken) as refused:
        table.register(said(term=9, port=2), 2, 1)
    for word in ("10.0.0.1:10911", "10.0.0.2:10911", "term 10", "term 9", "copy"):
        assert word in str(refused.value)
    assert registered(table) == {"broker-a": live}


def test_a_live_store_with_its_term_at_another_address_is_a_copy() -> None:
    table = RouteTable()
    table.register(said(port=1), 1, 0)
    with pytest.raises(BrokerNameTaken, match="copy"):
        table.register(said(port=2), 2, 1)
    table.connection_closed(1)
    assert table.register(said(port=2), 2, 2).joined


def test_a_higher_term_replaces() -> None:
    table = RouteTable()
    table.register(said(term=10), 1, 0)
    change = table.register(said(term=11, port=2), 2, 1)
    assert (change.joined, change.superseded) == (True, 1)
    assert table.connection_closed(1) == ()
    assert [(b.address, b.registered, b.term) for b in table.brokers("internal")] == [("10.0.0.2:10911", True, 11)]


def test_a_broker_that_lacks_layouts_adopts_them_before_it_is_routed() -> None:
    table = RouteTable()
    table.register(said("broker-a", layouts=(layout(brokers=("broker-a", "broker-b")),)), 1, 0)
    learning = table.register(said("broker-b", store=STORE_B, port=2), 2, 0)
    assert (learning.routed, learning.missing) == (False, (layout(brokers=("broker-a", "broker-b")),))
    route = table.route("orders", "internal")
    assert route is not None
    assert [(b.name, b.registered) for b in route.brokers] == [("broker-a", True), ("broker-b", False)]
    complete = table.register(said("broker-b", store=STORE_B, port=2, layouts=learning.missing), 2, 1)
    assert (complete.routed, complete.missing, complete.joined) == (True, (), False)
    assert registered(table) == {"broker-a": True, "broker-b": True}


def test_a_routed_broker_stays_routed_while_it_learns_a_new_topic() -> None:
    table = RouteTable()
    table.register(said("broker-a"), 1, 0)
    table.register(said("broker-b", store=STORE_B, port=2), 2, 0)
    table.register(said("broker-a", layouts=(layout(),)), 1, 1)
    assert table.register(said("broker-b", store=STORE_B, port=2), 2, 2).missing == (layout(),)
    assert registered(table) == {"broker-a": True, "broker-b": True}


def test_a_broker_that_restarted_without_a_layout_is_not_routed_until_it_has_it() -> None:
    table = RouteTable()
    table.register(said(term=10, layouts=(layout(),)), 1, 0)
    assert not table.register(said(term=11), 2, 1).routed
    assert registered(table) == {"broker-a": False}
    assert table.register(said(term=11, layouts=(layout(),)), 2, 2).routed


def test_a_deleted_topic_has_no_route_and_its_deletion_is_told_to_who_lacks_it() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, 0)
    gone = replace(layout(), version=LayoutVersion(2, 1), entries=())
    table.register(said(layouts=(gone,)), 1, 1)
    assert table.route("orders", "internal") is None
    assert table.register(said("broker-b", store=STORE_B, port=2, layouts=(layout(),)), 2, 2).missing == (gone,)


def test_a_broker_of_the_layout_that_was_never_seen_has_no_address() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(brokers=("broker-a", "broker-b")),)), 1, 0)
    route = table.route("orders", "internal")
    assert route is not None
    assert [b.name for b in route.brokers] == ["broker-a"]
    assert {q.broker_name for q in route.layout.write_queues} == {"broker-a", "broker-b"}


def test_a_nameserver_that_starts_empty_learns_every_layout_from_one_registration() -> None:
    old, new = RouteTable(), RouteTable()
    everything = (
        layout("orders", brokers=("broker-a", "broker-b")),
        layout("bills", brokers=("broker-b",)),
        layout("cards", brokers=("broker-c",)),
    )
    old.register(said("broker-a", layouts=everything[:1]), 1, 0)
    old.register(said("broker-b", store=STORE_B, layouts=everything[1:]), 2, 0)
    learned = old.register(said("broker-a", layouts=everything[:1]), 1, 1).missing
    new.register(said("broker-a", layouts=everything[:1] + learned), 1, 0)
    assert new.ready
    assert {one.topic: one for one in new.layouts.all()} == {one.topic: one for one in everything}


def test_nameservers_know_nothing_of_each_other() -> None:
    one, other = RouteTable(), RouteTable()
    one.register(said(layouts=(layout(),)), 1, 0)
    assert other.route("orders", "internal") is None
    assert not other.ready
    other.register(said(store=STORE_B, port=2), 1, 0)
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
        st.tuples(
            st.just("unregister"),
            st.sampled_from(["broker-a", "broker-b"]),
            st.sampled_from([STORE_A, STORE_B]),
            st.integers(1, 3),
            st.integers(1, 4),
        ),
        st.tuples(st.just("wait"), st.integers(0, SILENCE_MS)),
    ),
    max_size=30,
)


@given(EVENTS)
def test_whoever_is_registered_was_heard_on_its_living_connection_within_the_limit(events: list[tuple[object, ...]]) -> None:
    table, now = RouteTable(), 0
    heard: dict[str, tuple[int, int, str, int]] = {}
    for event in events:
        match event:
            case ("register", str(name), str(store), int(term), int(connection)):
                try:
                    table.register(said(name, store=store, term=term, port=1), connection, now)
                    heard[name] = (connection, now, store, term)
                except BrokerNameTaken:
                    assert name in heard, "nobody had this name"
            case ("close", int(connection)):
                gone = table.connection_closed(connection)
                assert all(heard[name][0] == connection for name in gone)
            case ("unregister", str(name), str(store), int(term), int(connection)):
                if table.unregister(name, store, term, connection):
                    assert (heard[name][0], *heard[name][2:]) == (connection, store, term)
            case ("wait", int(ms)):
                now += ms
                for name, connection in table.expire(now).items():
                    assert (heard[name][0], now - heard[name][1] >= SILENCE_MS) == (connection, True)
        for name in table.registered():
            assert now - heard[name][1] < SILENCE_MS
        assert set(registered(table)) == set(heard), "a name once known stays known"
