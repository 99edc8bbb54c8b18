"""RouteTable holds the nameserver's law: design page `wire`, last paragraph."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.nameserver.broker_record import Registration
from lockstep.nameserver.route_table import (
    BROKERS_MAX,
    CHALLENGE_MS,
    COUNTDOWN_STEP_MS,
    FORGET_MS,
    INCOMPLETE_MAX,
    INCOMPLETE_MS,
    REFUSED_MAX,
    RouteTable,
)
from lockstep.nameserver.topic_quota import SILENCE_MS
from lockstep.protocol.errors import BrokerNameTakenError, RegistrationPendingError, RemoteProtocolError, ServiceNotAvailableError
from lockstep.protocol.layouts import PART_LAYOUTS_MAX
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout

STORE_A, STORE_B = "a" * 32, "b" * 32
PROOF = "c" * 32
ANSWER_MS = CHALLENGE_MS + COUNTDOWN_STEP_MS
"""How long a challenge waits for its response, including the slice in which it begins."""


def layout(topic: str = "orders", counter: int = 1, writer: int = 7, brokers: tuple[str, ...] = ("broker-a",)) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, writer), tuple(LayoutEntry(name, 4, 4, counter) for name in brokers))


def said(
    name: str = "broker-a",
    *,
    store: str = STORE_A,
    term: int = 10,
    port: int = 1,
    layouts: tuple[TopicLayout, ...] = (),
    proof: str | None = PROOF,
    previous: int | None = None,
    part: int = 0,
    parts: int = 1,
) -> Registration:
    listeners = {"internal": f"10.0.0.{port}:10911", "external": f"localhost:{port}"}
    return Registration(name, "DefaultCluster", store, term, listeners, layouts, proof, previous, part, parts)


def challenged(table: RouteTable, registration: Registration, connection: int, now_ms: int) -> str:
    """The error message that asks a challenger to try again."""
    with pytest.raises(RegistrationPendingError) as pending:
        table.register(registration, connection, now_ms)
    return str(pending.value)


def registered(table: RouteTable, listener: str = "internal") -> dict[str, bool]:
    return {broker.name: broker.registered for broker in table.brokers(listener)}


def test_the_first_registration_is_routed_with_its_topics() -> None:
    table = RouteTable()
    change = table.register(said(layouts=(layout(),)), 1, 0)
    assert (change.joined, change.routed, change.missing, change.adopted, change.superseded) == (True, True, (), ("orders",), None)
    route = table.route("orders", "internal", 0)
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


def test_an_invalid_layout_is_left_out_and_named_and_the_others_count() -> None:
    table = RouteTable()
    huge = TopicLayout("huge", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1 << 40, 1 << 40, 1),))
    change = table.register(said(layouts=(layout(), huge)), 1, 0)
    assert [(refused.topic, "1099511627776 queues" in refused.reason) for refused in change.refused] == [("huge", True)]
    assert (change.adopted, change.missing, change.routed) == (("orders",), (), True)
    assert table.layouts.all() == (layout(),)


def test_entries_of_all_layouts_together_are_limited_and_the_layout_beyond_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.nameserver.route_table.ENTRIES_MAX", 3)
    table = RouteTable()
    many = layout("many", brokers=("broker-a", "broker-b"))
    change = table.register(said(layouts=(many, layout("one"), layout("refused"), TopicLayout("deleted", LayoutVersion(2, 7), ()))), 1, 0)
    assert [(left_out.topic, "maximum of 3 entries" in left_out.reason) for left_out in change.refused] == [("refused", True)]
    assert (change.adopted, change.routed, table.layouts.entry_count) == (("many", "one", "deleted"), True, 3)
    grown = layout("one", 2, brokers=("broker-a", "broker-b"))
    assert [left_out.topic for left_out in table.register(said(layouts=(grown,)), 1, 1).refused] == ["one"]
    assert table.layouts.get("one") == layout("one")
    fewer = layout("many", 2, brokers=("broker-b",))
    assert table.register(said(layouts=(fewer, grown)), 1, 2).refused == (), "what makes room counts at once"


def test_a_broker_is_not_taught_the_older_layout_of_a_topic_that_was_left_out() -> None:
    """It would not take it, and so never be accepted."""
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, 0)
    huge = TopicLayout("orders", LayoutVersion(2, 7), (LayoutEntry("broker-a", 1 << 40, 1 << 40, 1),))
    change = table.register(said(layouts=(huge,)), 1, 1)
    assert (len(change.refused), change.missing) == (1, ())
    assert table.layouts.get("orders") == layout()


def test_a_name_is_answered_by_the_listener_that_was_asked_else_by_internal() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, 0)
    for listener, address in {"internal": "10.0.0.1:10911", "external": "localhost:1", "other": "10.0.0.1:10911"}.items():
        route = table.route("orders", listener, 0)
        assert route is not None
        assert route.brokers[0].address == address
        assert table.brokers(listener)[0].address == address


def test_the_close_of_the_registering_connection_unregisters_at_once_and_keeps_the_last_address() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, 0)
    assert table.connection_closed(2) == ()
    assert registered(table) == {"broker-a": True}
    assert table.connection_closed(1) == ("broker-a",)
    route = table.route("orders", "external", 0)
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


OTHERS = {
    "another store": said(store=STORE_B, term=99, port=2, layouts=(layout("stolen"),)),
    "a higher term": said(term=11, port=2, previous=10, layouts=(layout("stolen"),)),
    "a higher term of an earlier version": said(term=11, port=2, proof=None, layouts=(layout("stolen"),)),
    "without the proof": said(proof=None, port=1, layouts=(layout("stolen"),)),
    "with another proof": said(term=11, proof="d" * 32, layouts=(layout("stolen"),)),
    "its term at another address": said(port=2, layouts=(layout("stolen"),)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_registered_broker_that_answers_is_not_replaced(other: str) -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    words = challenged(table, OTHERS[other], 2, 1_000)
    assert "10.0.0.1:10911" in words
    assert table.take_challenges() == [("broker-a", 1)]
    challenged(table, OTHERS[other], 2, 1_500)
    assert table.take_challenges() == [], "it is asked once"
    table.confirm_alive("broker-a", 1, 1_600)
    for now_ms in (1_601, 1_600 + CHALLENGE_MS - 1):
        with pytest.raises(BrokerNameTakenError) as refused:
            table.register(OTHERS[other], 2, now_ms)
        for word in ("10.0.0.1:10911", OTHERS[other].address):
            assert word in str(refused.value)
    challenged(table, OTHERS[other], 2, 1_600 + CHALLENGE_MS)
    assert table.layouts.get("stolen") is None
    assert table.brokers("internal")[0].address == "10.0.0.1:10911"
    assert table.connection_closed(2) == ()
    assert registered(table) == {"broker-a": True}


@pytest.mark.parametrize("other", OTHERS)
def test_a_registered_broker_that_does_not_answer_is_replaced_when_its_time_is_over(other: str) -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    challenged(table, OTHERS[other], 2, 1_000)
    assert table.count_down_challenges(ANSWER_MS - 1)
    challenged(table, OTHERS[other], 2, 6_000)
    assert not table.count_down_challenges(1)
    change = table.register(OTHERS[other], 2, 6_001)
    assert (change.joined, change.superseded) == (True, 1)
    assert table.connection_closed(1) == ()
    assert registered(table) == {"broker-a": True}
    table.confirm_alive("broker-a", 1, 7_000)
    assert table.brokers("internal")[0].address == OTHERS[other].address, "an answer that comes too late changes nothing"


def test_a_challenge_is_decided_by_what_was_read_and_not_by_the_time_that_has_passed() -> None:
    """The nameserver was suspended: the response has arrived, and is read after the next registration of the challenger."""
    table = RouteTable()
    table.register(said(), 1, 0)
    challenged(table, OTHERS["a higher term"], 2, 1_000)
    assert table.count_down_challenges(COUNTDOWN_STEP_MS)
    challenged(table, OTHERS["a higher term"], 2, 1_000 + 100 * CHALLENGE_MS)
    table.confirm_alive("broker-a", 1, 1_001 + 100 * CHALLENGE_MS)
    with pytest.raises(BrokerNameTakenError):
        table.register(OTHERS["a higher term"], 2, 1_002 + 100 * CHALLENGE_MS)


@pytest.mark.parametrize("heard_ms", [0, 7_000])
def test_time_in_which_the_nameserver_was_suspended_is_no_silence_of_a_broker(heard_ms: int) -> None:
    table, pause_ms = RouteTable(), 10 * SILENCE_MS
    table.register(said(), 1, heard_ms)
    table.exclude_pause(pause_ms, 7_000 + pause_ms)
    assert table.expire(heard_ms + pause_ms + SILENCE_MS - 1) == {}
    assert table.expire(heard_ms + pause_ms + SILENCE_MS) == {"broker-a": 1}


def test_a_broker_that_was_heard_after_a_standstill_is_not_heard_in_the_future() -> None:
    table = RouteTable()
    table.register(said(), 1, 1_000_000)
    table.exclude_pause(1_000_000, 1_000_000)
    assert table.expire(1_000_000 + SILENCE_MS) == {"broker-a": 1}


def test_a_registration_of_the_incumbent_is_an_answer() -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    challenged(table, OTHERS["a higher term"], 2, 1_000)
    assert table.count_down_challenges(ANSWER_MS - 1)
    table.register(said(), 1, 2_000)
    assert not table.count_down_challenges(1)
    challenged(table, OTHERS["a higher term"], 2, 1_000 + CHALLENGE_MS)
    assert table.take_challenges() == [("broker-a", 1), ("broker-a", 1)]


def test_a_broker_that_dials_again_is_no_challenger() -> None:
    table = RouteTable()
    table.register(said(previous=9), 1, 0)
    change = table.register(said(previous=9), 2, 1)
    assert (change.joined, change.superseded) == (False, 1)
    assert table.take_challenges() == []


def test_the_close_of_the_incumbents_connection_ends_the_challenge() -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    challenged(table, OTHERS["a higher term"], 2, 1_000)
    table.connection_closed(1)
    assert table.register(OTHERS["a higher term"], 2, 1_001).joined


def test_a_name_that_is_not_live_may_be_taken_by_another_store() -> None:
    table = RouteTable()
    table.register(said(), 1, 0)
    table.connection_closed(1)
    assert table.register(said(store=STORE_B, term=3, port=2), 2, 1).joined
    # With the term of the store that had it, so that clients, which keep the address of the highest term, follow.
    assert [(b.address, b.term) for b in table.brokers("internal")] == [("10.0.0.2:10911", 10)]


@pytest.mark.parametrize("live", [True, False])
def test_a_copied_store_is_refused_by_its_lower_term_whether_or_not_the_other_lives(live: bool) -> None:
    table = RouteTable()
    table.register(said(term=10), 1, 0)
    if not live:
        table.connection_closed(1)
    with pytest.raises(BrokerNameTakenError) as refused:
        table.register(said(term=9, port=2), 2, 1)
    for word in ("10.0.0.1:10911", "10.0.0.2:10911", "term 10", "term 9", "copies"):
        assert word in str(refused.value)
    assert registered(table) == {"broker-a": live}


# The store's terms: (previous term, term) of one start after the other, and whether the nameserver accepts it.
LINES: dict[str, list[tuple[int | None, int, bool]]] = {
    "restarts": [(None, 10, True), (10, 11, True), (11, 12, True)],
    "a first start": [(0, 10, True)],
    "starts that ended before they registered": [(9, 10, True), (12, 13, True)],
    "a nameserver that missed a start": [(9, 10, True), (11, 12, True), (12, 13, True)],
    "a copy while the original is down, then the original": [(9, 10, True), (10, 20, True), (10, 30, False)],
    "an older backup": [(9, 10, True), (10, 11, True), (9, 40, False)],
    "a copy with a lower term": [(9, 10, True), (8, 9, False)],
    "a copy that got its term in the same second": [(9, 10, True), (9, 10, False)],
    "brokers of an earlier version": [(None, 10, True), (None, 11, True), (None, 10, False), (11, 12, True), (None, 13, True)],
}


@pytest.mark.parametrize("line", LINES)
def test_a_store_that_has_not_seen_the_start_that_was_accepted_last_is_refused(line: str) -> None:
    table = RouteTable()
    for connection, (previous, term, accepted) in enumerate(LINES[line]):
        registration = said(term=term, previous=previous, port=connection + 1)
        if accepted:
            table.register(registration, connection, connection)
            table.register(registration, connection, connection)  # its next period
        else:
            with pytest.raises(BrokerNameTakenError) as refused:
                table.register(registration, connection, connection)
            for word in ("last registered from 10.0.0.", f"term {term}", registration.address, "Do not delete either", "operations.md"):
                assert word in str(refused.value)
            assert "empty" not in str(refused.value)
        table.connection_closed(connection)


def test_a_copy_is_refused_at_once_while_the_original_lives() -> None:
    table = RouteTable()
    table.register(said(term=10, previous=9), 1, 0)
    with pytest.raises(BrokerNameTakenError, match="has not seen term 10"):
        table.register(said(term=11, previous=9, port=2), 2, 1)
    assert table.take_challenges() == []


def test_a_nameserver_that_starts_empty_accepts_any_start() -> None:
    assert RouteTable().register(said(term=30, previous=10), 1, 0).joined


def test_nothing_that_a_nameserver_says_or_logs_has_the_proof() -> None:
    table = RouteTable()
    registration = said(previous=9)
    table.register(registration, 1, 0)
    shown = [repr(registration), repr(table.brokers("internal")), repr(table._brokers)]
    shown += [challenged(table, other, 2, 1) for other in OTHERS.values()]
    table.confirm_alive("broker-a", 1, 2)
    for other in OTHERS.values():
        with pytest.raises(BrokerNameTakenError) as refused:
            table.register(other, 2, 3)
        shown.append(str(refused.value))
    assert not any(PROOF in text for text in shown)


def test_a_broker_that_lacks_layouts_adopts_them_before_it_is_routed() -> None:
    table = RouteTable()
    table.register(said("broker-a", layouts=(layout(brokers=("broker-a", "broker-b")),)), 1, 0)
    learning = table.register(said("broker-b", store=STORE_B, port=2), 2, 0)
    assert (learning.routed, learning.missing) == (False, (layout(brokers=("broker-a", "broker-b")),))
    route = table.route("orders", "internal", 0)
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
    table.connection_closed(1)
    assert not table.register(said(term=11), 2, 1).routed
    assert registered(table) == {"broker-a": False}
    assert table.register(said(term=11, layouts=(layout(),)), 2, 2).routed


def test_a_deleted_topic_has_no_route_and_its_deletion_is_told_to_who_lacks_it() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, 0)
    gone = replace(layout(), version=LayoutVersion(2, 1), entries=())
    table.register(said(layouts=(gone,)), 1, 1)
    assert table.route("orders", "internal", 0) is None
    assert table.register(said("broker-b", store=STORE_B, port=2, layouts=(layout(),)), 2, 2).missing == (gone,)


def test_a_broker_of_the_layout_that_was_never_seen_has_no_address() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(brokers=("broker-a", "broker-b")),)), 1, 0)
    route = table.route("orders", "internal", 0)
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
    assert other.route("orders", "internal", 0) is None
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
        st.tuples(st.just("answer"), st.sampled_from(["broker-a", "broker-b"]), st.integers(1, 4)),
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
def test_whoever_is_registered_was_heard_on_its_living_connection_within_the_limit(events: list[tuple[object, ...]]) -> None:
    table, now = RouteTable(), 0
    heard: dict[str, tuple[int, int, str, int]] = {}
    for event in events:
        match event:
            case ("register", str(name), str(store), int(term), int(connection)):
                try:
                    table.register(said(name, store=store, term=term, port=1), connection, now)
                    heard[name] = (connection, now, store, term)
                except (BrokerNameTakenError, RegistrationPendingError):
                    assert name in heard, "nobody had this name"
            case ("close", int(connection)):
                gone = table.connection_closed(connection)
                assert all(heard[name][0] == connection for name in gone)
            case ("unregister", str(name), str(store), int(term), int(connection)):
                if table.unregister(name, store, term, connection):
                    assert (heard[name][0], *heard[name][2:]) == (connection, store, term)
            case ("answer", str(name), int(connection)):
                table.confirm_alive(name, connection, now)
            case ("wait", int(ms)):
                now += ms
                table.count_down_challenges(ms)
                for name, connection in table.expire(now).items():
                    assert (heard[name][0], now - heard[name][1] >= SILENCE_MS) == (connection, True)
        for name in table.registered():
            assert now - heard[name][1] < SILENCE_MS
        assert set(registered(table)) == set(heard), "a name that was routed stays known for a week"


# ------------------------------------------------------------------------------------------------------------------ how many


def unrouted(name: str) -> Registration:
    """It lacks the layout that is there, so that it is learning."""
    return said(name, store=STORE_B, port=2)


def test_a_broker_that_was_never_routed_is_forgotten_with_its_connection() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, 0)
    assert not table.register(unrouted("stranger"), 2, 0).routed
    assert table.connection_closed(2) == ("stranger",)
    assert registered(table) == {"broker-a": True}


@pytest.mark.parametrize(("named_ms", "left_ms"), [(0, 0), (0, 5_000), (9_000, 5_000)])
def test_others_are_forgotten_seven_days_after_they_left_or_were_last_named(named_ms: int, left_ms: int) -> None:
    table = RouteTable()
    table.register(said(layouts=(layout(),)), 1, left_ms)
    table.connection_closed(1)
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


def test_a_registered_broker_is_never_forgotten() -> None:
    table = RouteTable(silence_ms=FORGET_MS * 9)
    table.register(said(layouts=(layout(),)), 1, 0)
    table.expire(FORGET_MS * 2)
    assert registered(table) == {"broker-a": True}


def test_a_nameserver_knows_1024_brokers_and_makes_room_only_where_one_is_away_and_unused() -> None:
    table = RouteTable()
    for number in range(BROKERS_MAX):
        table.register(said(f"b-{number}", layouts=(layout(brokers=("b-1",)),)), number, number)
    with pytest.raises(ServiceNotAvailableError, match=r"'one-more' .* knows 1024 brokers"):
        table.register(said("one-more"), 5_000, 5_000)
    table.connection_closed(1)
    table.route("orders", "internal", 5_000)
    with pytest.raises(ServiceNotAvailableError):
        table.register(said("one-more"), 5_000, 5_000)
    for gone in (7, 5):
        table.connection_closed(gone)
    table.register(said("one-more"), 5_000, 5_000)
    assert set(registered(table)) == {"one-more", *(f"b-{number}" for number in range(BROKERS_MAX) if number != 5)}


# --------------------------------------------------------------------------------------------------------------------- parts


MANY = tuple(layout(f"t-{number}") for number in range(PART_LAYOUTS_MAX + 1))


def test_a_registration_counts_with_its_last_part() -> None:
    table = RouteTable()
    table.register(said("broker-b", store=STORE_B, layouts=(layout("theirs"),)), 9, 0)
    first = table.register(said(layouts=MANY[:-1], parts=2), 1, 0)
    assert (first.missing, len(first.adopted), first.joined) == ((), PART_LAYOUTS_MAX, False)
    assert "broker-a" not in registered(table)
    last = table.register(said(layouts=MANY[-1:], part=1, parts=2), 1, 1)
    assert (last.missing, last.joined, last.routed) == ((layout("theirs"),), True, False)
    table.register(said(layouts=MANY[:-1], parts=2), 1, 2)
    assert table.register(said(layouts=(*MANY[-1:], layout("theirs")), part=1, parts=2), 1, 3).routed


def test_what_another_broker_changes_between_two_parts_is_missing() -> None:
    table = RouteTable()
    table.register(said(layouts=(layout("t", 1),), parts=2), 1, 0)
    table.register(said("broker-b", store=STORE_B, layouts=(layout("t", 2),)), 9, 0)
    assert table.register(said(layouts=(layout("u"),), part=1, parts=2), 1, 1).missing == (layout("t", 2),)


@pytest.mark.parametrize(
    "parts",
    [
        [(1, 2)],
        [(0, 3), (2, 3)],
        [(0, 3), (1, 2)],
        [(0, 3), (1, 3), (1, 3)],
        [(0, 0)],
        [(2, 2)],
        [(-1, 2)],
        [(0, 65)],
    ],
)
def test_a_part_out_of_turn_is_refused_and_the_registration_begins_again(parts: list[tuple[int, int]]) -> None:
    table = RouteTable()
    for part, count in parts[:-1]:
        table.register(said(part=part, parts=count), 1, 0)
    with pytest.raises(RemoteProtocolError):
        table.register(said(part=parts[-1][0], parts=parts[-1][1]), 1, 0)
    assert table.register(said(), 1, 0).routed


def test_a_connection_that_is_lost_between_two_parts_begins_again() -> None:
    table = RouteTable()
    table.register(said(parts=2), 1, 0)
    table.connection_closed(1)
    with pytest.raises(RemoteProtocolError, match="out of order"):
        table.register(said(part=1, parts=2), 2, 0)


def test_of_registrations_in_parts_64_may_arrive_at_once_and_one_that_stops_is_given_up() -> None:
    table = RouteTable()
    for number in range(INCOMPLETE_MAX):
        table.register(said(f"b-{number}", parts=2), number, 0)
    table.expire(INCOMPLETE_MS - 1)
    assert table.register(said("b-7", part=1, parts=2), 7, INCOMPLETE_MS - 1).routed
    table.expire(INCOMPLETE_MS)
    assert not table._incomplete
    with pytest.raises(RemoteProtocolError, match="out of order"):
        table.register(said("b-8", part=1, parts=2), 8, INCOMPLETE_MS)


def test_connections_that_begin_a_registration_again_and_again_keep_no_broker_from_registering() -> None:
    table = RouteTable()
    for now_ms in range(0, 20 * INCOMPLETE_MS, INCOMPLETE_MS - 1_000):
        for number in range(INCOMPLETE_MAX):
            table.register(said(f"b-{number}", parts=2), number, now_ms)
        table.expire(now_ms + 999)
        table.register(said(parts=2), 900, now_ms + 999)
        assert len(table._incomplete) <= INCOMPLETE_MAX
        assert table.register(said(part=1, parts=2), 900, now_ms + 999).routed


def test_the_registration_in_parts_that_began_first_gives_its_place_to_a_newcomer() -> None:
    table = RouteTable()
    for number in range(INCOMPLETE_MAX):
        table.register(said(f"b-{number}", parts=3), number, number)
    table.register(said("b-0", parts=3), 0, 1_000)  # begins again
    table.register(said("b-1", part=1, parts=3), 1, 1_000)
    table.register(said(parts=2), 900, 1_001)
    table.register(said("b-1", part=2, parts=3), 1, 1_002)
    with pytest.raises(RemoteProtocolError, match="out of order"):
        table.register(said("b-0", part=1, parts=3), 0, 1_002)


def test_a_standstill_gives_no_registration_in_parts_up() -> None:
    table = RouteTable()
    table.register(said(parts=2), 1, 0)
    table.exclude_pause(INCOMPLETE_MS, INCOMPLETE_MS + 5)
    table.expire(INCOMPLETE_MS + 5)
    assert table.register(said(part=1, parts=2), 1, INCOMPLETE_MS + 5).routed


def test_an_answer_has_one_part_of_what_is_missing_and_the_next_registration_gets_the_rest() -> None:
    table = RouteTable()
    table.register(said("broker-b", store=STORE_B, layouts=MANY), 9, 0)
    first = table.register(said(), 1, 0)
    assert (len(first.missing), first.routed) == (PART_LAYOUTS_MAX, False)
    table.register(said(layouts=first.missing[:1000], parts=2), 1, 1)
    second = table.register(said(layouts=first.missing[1000:], part=1, parts=2), 1, 1)
    assert (len(second.missing), second.routed) == (1, False)


def test_however_many_layouts_are_left_out_the_broker_is_registered_and_the_first_1024_are_named() -> None:
    table = RouteTable()
    wrong = tuple(TopicLayout(f"t-{number}", LayoutVersion(1, 7), (LayoutEntry("b", 0, 0, 1),)) for number in range(REFUSED_MAX + 2))
    first = table.register(said(layouts=wrong[:-3], parts=2), 1, 0)
    assert (len(first.refused), first.refused_more) == (REFUSED_MAX - 1, 0)
    last = table.register(said(layouts=(*wrong[-3:], layout()), part=1, parts=2), 1, 1)
    assert ([left_out.topic for left_out in last.refused], last.refused_more) == ([wrong[-3].topic], 2)
    assert (last.joined, last.routed, last.missing, table.layouts.all()) == (True, True, (), (layout(),))
