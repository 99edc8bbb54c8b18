import pytest

from lockstep.broker.groups.tables.session_table import BoundSession, Session, SessionRefusal, SessionTable

GRACE, TIMEOUT = 3_000, 20_000


@pytest.fixture
def table() -> SessionTable:
    return SessionTable(grace_ms=GRACE, timeout_ms=TIMEOUT)


def bind(
    table: SessionTable, session: str, connection: int, number: int, *, client: str = "c1", now: int = 0
) -> BoundSession | SessionRefusal:
    return table.bind(session, client, connection=connection, number=number, now_ms=now)


def bound(table: SessionTable, session: str, connection: int, number: int, *, client: str = "c1", now: int = 0) -> Session:
    result = bind(table, session, connection, number, client=client, now=now)
    assert isinstance(result, BoundSession)
    return result.session


def test_highest_connection_number_is_bound_and_the_older_connection_returned(table: SessionTable) -> None:
    bound(table, "s", 10, 1)
    result = bind(table, "s", 11, 2)
    assert isinstance(result, BoundSession)
    assert result.older_connection == 10
    assert table.session_on(10) is None
    assert table.session_on(11) is result.session


@pytest.mark.parametrize(("number", "expected"), [(1, SessionRefusal.OLD), (2, SessionRefusal.OLD), (3, None)])
def test_only_a_higher_number_replaces_another_connection(table: SessionTable, number: int, expected: SessionRefusal | None) -> None:
    bound(table, "s", 10, 2)
    result = bind(table, "s", 11, number)
    assert result is expected if expected else isinstance(result, BoundSession)


def test_client_may_return_until_its_session_has_ended_or_the_grace_after_a_start_is_over(table: SessionTable) -> None:
    assert not table.may_return("c1", 0)
    session = bound(table, "s", 10, 1)
    table.unbind(10, 5)
    assert table.may_return("c1", 10_000), "until the session is removed"
    table.remove(session)
    assert not table.may_return("c1", 10_000)
    table.restart_timeouts(10_000, 13_000)
    assert [table.may_return("c1", now_ms) for now_ms in (12_999, 13_000, 13_001)] == [True, False, False]


def test_lower_number_is_rejected_even_after_the_connection_closed(table: SessionTable) -> None:
    bound(table, "s", 10, 2)
    table.unbind(10, 5)
    assert bind(table, "s", 11, 2) is SessionRefusal.OLD
    assert isinstance(bind(table, "s", 12, 3), BoundSession)


def test_close_of_an_older_connection_is_ignored(table: SessionTable) -> None:
    session = bound(table, "s", 10, 1)
    bound(table, "s", 11, 2)
    assert table.unbind(10, 100) is None
    assert session.connection == 11


def test_repeated_heartbeat_binds_again_and_closes_nothing(table: SessionTable) -> None:
    bound(table, "s", 10, 1)
    result = bind(table, "s", 10, 1, now=7)
    assert isinstance(result, BoundSession)
    assert result.older_connection is None
    assert result.session.received_ms == 7


def test_connection_has_one_session_and_a_session_one_client_id(table: SessionTable) -> None:
    bound(table, "s", 10, 1)
    assert bind(table, "other", 10, 5, client="c2") is SessionRefusal.FOREIGN
    assert bind(table, "s", 11, 5, client="c2") is SessionRefusal.FOREIGN


def test_second_session_of_a_client_id_binds_only_in_the_grace_of_the_first(table: SessionTable) -> None:
    first = bound(table, "s1", 10, 1)
    assert bind(table, "s2", 11, 1) is SessionRefusal.DUPLICATE
    table.unbind(10, 50)
    second = bound(table, "s2", 11, 1, now=60)
    assert table.get("s1") is first
    assert table.due_ms(first) == 50 + GRACE
    assert bind(table, "s1", 12, 2) is SessionRefusal.DUPLICATE
    table.remove(first)
    assert table.session_on(11) is second
    assert bind(table, "s3", 13, 1) is SessionRefusal.DUPLICATE


@pytest.mark.parametrize(("after", "over"), [(GRACE - 1, False), (GRACE, True), (GRACE + 1, True)])
def test_closed_session_expires_after_the_grace(table: SessionTable, after: int, over: bool) -> None:
    bound(table, "s", 10, 1, now=100)
    table.unbind(10, 500)
    assert bool(table.expired_sessions(500 + after)) is over


@pytest.mark.parametrize(("after", "over"), [(TIMEOUT - 1, False), (TIMEOUT, True), (TIMEOUT + 1, True)])
def test_silent_session_expires_after_the_session_timeout(table: SessionTable, after: int, over: bool) -> None:
    bound(table, "s", 10, 1, now=100)
    table.touch(10, 400)
    assert bool(table.expired_sessions(400 + after)) is over


def test_silence_expires_a_session_even_if_it_closed_at_last(table: SessionTable) -> None:
    session = bound(table, "s", 10, 1, now=0)
    table.unbind(10, TIMEOUT - 10)
    assert table.due_ms(session) == TIMEOUT


def test_only_the_bound_connection_keeps_a_session_alive(table: SessionTable) -> None:
    session = bound(table, "s", 10, 1, now=0)
    bound(table, "s", 11, 2, now=5)
    assert table.touch(10, 900) is None
    assert session.received_ms == 5


def test_recorded_session_has_the_grace_and_any_number_binds_it(table: SessionTable) -> None:
    table.restore_session("s", "c1", 1_000)
    session = table.get("s")
    assert session is not None
    assert table.due_ms(session) == 1_000 + GRACE
    assert isinstance(bind(table, "s", 1, 0), BoundSession)


def test_pause_of_the_broker_does_not_count_as_silence(table: SessionTable) -> None:
    session = bound(table, "s", 10, 1, now=0)
    table.exclude_pause(60_000, 61_000)
    assert table.due_ms(session) == 60_000 + TIMEOUT
    table.exclude_pause(60_000, 61_000)
    assert session.received_ms == 61_000
    assert table.next_due_ms() == 61_000 + TIMEOUT


def test_no_session_expires_after_a_start_before_the_longest_announced_grace(table: SessionTable) -> None:
    table.restore_session("s", "c1", 0)
    table.restart_timeouts(1_000, 1_000 + 5 * GRACE)
    silent = bound(table, "s", 10, 1, now=1_001)
    table.unbind(10, 1_002)
    assert table.due_ms(silent) == 1_000 + 5 * GRACE
    table.restart_timeouts(2_000, 2_000 + GRACE)
    bound(table, "s", 11, 2, now=2_500)
    table.unbind(11, 2_600)
    assert table.due_ms(silent) == 2_600 + GRACE


def test_removed_session_frees_its_client_id(table: SessionTable) -> None:
    session = bound(table, "s", 10, 1)
    table.remove(session)
    assert len(table) == 0
    assert table.session_on(10) is None
    assert table.next_due_ms() is None
    assert isinstance(bind(table, "t", 10, 1), BoundSession)
