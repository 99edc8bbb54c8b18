"""The nameserver's table: two stores that claim one name, challenges, copies and the proof of a start."""

import pytest

from lockstep.nameserver.broker_record import Registration
from lockstep.nameserver.route_table import (
    CHALLENGE_MS,
    COUNTDOWN_STEP_MS,
    RouteTable,
)
from lockstep.nameserver.topic_quota import SILENCE_MS
from lockstep.protocol.errors import BrokerNameTakenError, RegistrationPendingError
from support.route_table_kit import PROOF, STORE_A, STORE_B, broker_registration, layout, registered

ANSWER_MS = CHALLENGE_MS + COUNTDOWN_STEP_MS
"""How long a challenge waits for its response, including the slice in which it starts."""


def challenge_message(table: RouteTable, registration: Registration, connection: int, now_ms: int) -> str:
    """Return the error message that asks a challenger to try again."""
    with pytest.raises(RegistrationPendingError) as pending:
        table.register(registration, connection, now_ms)
    return str(pending.value)


def test_unregister_requires_the_registered_store_term_and_connection() -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 0)
    assert not table.unregister("broker-x", STORE_A, 10, 1, 0)
    assert not table.unregister("broker-a", STORE_B, 10, 1, 0)
    assert not table.unregister("broker-a", STORE_A, 9, 1, 0)
    assert not table.unregister("broker-a", STORE_A, 10, 2, 0)
    assert registered(table) == {"broker-a": True}
    assert table.unregister("broker-a", STORE_A, 10, 1, 0)
    assert registered(table) == {"broker-a": False}
    assert not table.unregister("broker-a", STORE_A, 10, 1, 0)


OTHERS = {
    "another store": broker_registration(store=STORE_B, term=99, port=2, layouts=(layout("stolen"),)),
    "a higher term": broker_registration(term=11, port=2, previous=10, layouts=(layout("stolen"),)),
    "with another proof": broker_registration(proof="d" * 32, layouts=(layout("stolen"),)),
    "a higher term with another proof": broker_registration(term=11, proof="d" * 32, layouts=(layout("stolen"),)),
    "its term at another address": broker_registration(port=2, layouts=(layout("stolen"),)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_registered_broker_that_responds_to_a_challenge_is_not_replaced(other: str) -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 0)
    words = challenge_message(table, OTHERS[other], 2, 1_000)
    assert "10.0.0.1:10911" in words
    assert table.take_challenges() == [("broker-a", 1)]
    challenge_message(table, OTHERS[other], 2, 1_500)
    assert table.take_challenges() == [], "it is asked once"
    table.confirm_alive("broker-a", 1, 1_600)
    for now_ms in (1_601, 1_600 + CHALLENGE_MS - 1):
        with pytest.raises(BrokerNameTakenError) as refused:
            table.register(OTHERS[other], 2, now_ms)
        for word in ("10.0.0.1:10911", OTHERS[other].address):
            assert word in str(refused.value)
    challenge_message(table, OTHERS[other], 2, 1_600 + CHALLENGE_MS)
    assert table.layouts.get("stolen") is None
    assert table.brokers("internal")[0].address == "10.0.0.1:10911"
    assert table.connection_closed(2, 0) == ()
    assert registered(table) == {"broker-a": True}


@pytest.mark.parametrize("other", OTHERS)
def test_registered_broker_that_does_not_respond_is_replaced_after_the_timeout(other: str) -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 0)
    challenge_message(table, OTHERS[other], 2, 1_000)
    assert table.count_down_challenges(ANSWER_MS - 1)
    challenge_message(table, OTHERS[other], 2, 6_000)
    assert not table.count_down_challenges(1)
    change = table.register(OTHERS[other], 2, 6_001)
    assert (change.joined, change.superseded) == (True, 1)
    assert table.connection_closed(1, 0) == ()
    assert registered(table) == {"broker-a": True}
    table.confirm_alive("broker-a", 1, 7_000)
    assert table.brokers("internal")[0].address == OTHERS[other].address, "a response that comes too late changes nothing"


def test_challenge_ends_by_counted_slices_and_not_by_elapsed_time() -> None:
    """The nameserver was suspended: the response has arrived, and is read after the next registration of the challenger."""
    table = RouteTable()
    table.register(broker_registration(), 1, 0)
    challenge_message(table, OTHERS["a higher term"], 2, 1_000)
    assert table.count_down_challenges(COUNTDOWN_STEP_MS)
    challenge_message(table, OTHERS["a higher term"], 2, 1_000 + 100 * CHALLENGE_MS)
    table.confirm_alive("broker-a", 1, 1_001 + 100 * CHALLENGE_MS)
    with pytest.raises(BrokerNameTakenError):
        table.register(OTHERS["a higher term"], 2, 1_002 + 100 * CHALLENGE_MS)


@pytest.mark.parametrize("heard_ms", [0, 7_000])
def test_suspension_of_the_nameserver_does_not_count_as_silence(heard_ms: int) -> None:
    table, pause_ms = RouteTable(), 10 * SILENCE_MS
    table.register(broker_registration(), 1, heard_ms)
    table.exclude_pause(pause_ms, 7_000 + pause_ms)
    assert table.expire(heard_ms + pause_ms + SILENCE_MS - 1) == {}
    assert table.expire(heard_ms + pause_ms + SILENCE_MS) == {"broker-a": 1}


def test_broker_heard_during_a_pause_is_not_recorded_in_the_future() -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 1_000_000)
    table.exclude_pause(1_000_000, 1_000_000)
    assert table.expire(1_000_000 + SILENCE_MS) == {"broker-a": 1}


def test_registration_of_the_incumbent_ends_the_challenge() -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 0)
    challenge_message(table, OTHERS["a higher term"], 2, 1_000)
    assert table.count_down_challenges(ANSWER_MS - 1)
    table.register(broker_registration(), 1, 2_000)
    assert not table.count_down_challenges(1)
    challenge_message(table, OTHERS["a higher term"], 2, 1_000 + CHALLENGE_MS)
    assert table.take_challenges() == [("broker-a", 1), ("broker-a", 1)]


def test_reconnecting_broker_is_not_a_challenger() -> None:
    table = RouteTable()
    table.register(broker_registration(previous=9), 1, 0)
    change = table.register(broker_registration(previous=9), 2, 1)
    assert (change.joined, change.superseded) == (False, 1)
    assert table.take_challenges() == []


def test_close_of_the_incumbents_connection_ends_the_challenge() -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 0)
    challenge_message(table, OTHERS["a higher term"], 2, 1_000)
    table.connection_closed(1, 0)
    assert table.register(OTHERS["a higher term"], 2, 1_001).joined


def test_unregistered_name_may_be_taken_by_another_store() -> None:
    table = RouteTable()
    table.register(broker_registration(), 1, 0)
    table.connection_closed(1, 0)
    assert table.register(broker_registration(store=STORE_B, term=3, port=2), 2, 1).joined
    # It gets the term of the store that had the name, so that clients, which keep the address of the highest term, follow.
    assert [(b.address, b.term) for b in table.brokers("internal")] == [("10.0.0.2:10911", 10)]


@pytest.mark.parametrize("live", [True, False])
def test_copied_store_with_a_lower_term_is_rejected(live: bool) -> None:
    table = RouteTable()
    table.register(broker_registration(term=10), 1, 0)
    if not live:
        table.connection_closed(1, 0)
    with pytest.raises(BrokerNameTakenError) as refused:
        table.register(broker_registration(term=9, port=2), 2, 1)
    for word in ("10.0.0.1:10911", "10.0.0.2:10911", "term 10", "term 9", "copies"):
        assert word in str(refused.value)
    assert registered(table) == {"broker-a": live}


# The store's terms: (previous term, term) of one start after the other, and whether the nameserver accepts it.
LINES: dict[str, list[tuple[int, int, bool]]] = {
    "restarts": [(9, 10, True), (10, 11, True), (11, 12, True)],
    "a first start": [(0, 10, True)],
    "starts that ended before they registered": [(9, 10, True), (12, 13, True)],
    "a nameserver that missed a start": [(9, 10, True), (11, 12, True), (12, 13, True)],
    "a copy while the original is down, then the original": [(9, 10, True), (10, 20, True), (10, 30, False)],
    "an older backup": [(9, 10, True), (10, 11, True), (9, 40, False)],
    "a copy with a lower term": [(9, 10, True), (8, 9, False)],
    "a copy that got its term in the same second": [(9, 10, True), (9, 10, False)],
}


@pytest.mark.parametrize("line", LINES)
def test_store_that_lacks_the_last_accepted_start_is_rejected(line: str) -> None:
    table = RouteTable()
    for connection, (previous, term, accepted) in enumerate(LINES[line]):
        registration = broker_registration(term=term, previous=previous, port=connection + 1)
        if accepted:
            table.register(registration, connection, connection)
            table.register(registration, connection, connection)  # its next period
        else:
            with pytest.raises(BrokerNameTakenError) as refused:
                table.register(registration, connection, connection)
            for word in ("last registered from 10.0.0.", f"term {term}", registration.address, "Do not delete either", "operations.md"):
                assert word in str(refused.value)
            assert "empty" not in str(refused.value)
        table.connection_closed(connection, 0)


def test_copy_is_rejected_at_once_while_the_original_is_registered() -> None:
    table = RouteTable()
    table.register(broker_registration(term=10, previous=9), 1, 0)
    with pytest.raises(BrokerNameTakenError, match="has not seen term 10"):
        table.register(broker_registration(term=11, previous=9, port=2), 2, 1)
    assert table.take_challenges() == []


def test_empty_nameserver_accepts_any_start() -> None:
    assert RouteTable().register(broker_registration(term=30, previous=10), 1, 0).joined


def test_proof_appears_in_no_response_and_no_log() -> None:
    table = RouteTable()
    registration = broker_registration(previous=9)
    table.register(registration, 1, 0)
    shown = [repr(registration), repr(table.brokers("internal")), repr(table._brokers)]
    shown += [challenge_message(table, other, 2, 1) for other in OTHERS.values()]
    table.confirm_alive("broker-a", 1, 2)
    for other in OTHERS.values():
        with pytest.raises(BrokerNameTakenError) as refused:
            table.register(other, 2, 3)
        shown.append(str(refused.value))
    assert not any(PROOF in text for text in shown)
