"""The nameserver's table: registrations that arrive in several parts."""

import pytest

from lockstep.nameserver.route_table import (
    INCOMPLETE_MAX,
    INCOMPLETE_MS,
    REFUSED_MAX,
    RouteTable,
)
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.topics.layouts import PART_LAYOUTS_MAX
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.route_table_kit import STORE_B, broker_registration, layout, registered

MANY = tuple(layout(f"t-{number}") for number in range(PART_LAYOUTS_MAX + 1))


def test_registration_takes_effect_with_its_last_part() -> None:
    table = RouteTable()
    table.register(broker_registration("broker-b", store=STORE_B, layouts=(layout("theirs"),)), 9, 0)
    first = table.register(broker_registration(layouts=MANY[:-1], parts=2), 1, 0)
    assert (first.missing, len(first.adopted), first.joined) == ((), PART_LAYOUTS_MAX, False)
    assert "broker-a" not in registered(table)
    last = table.register(broker_registration(layouts=MANY[-1:], part=1, parts=2), 1, 1)
    assert (last.missing, last.joined, last.routed) == ((layout("theirs"),), True, False)
    table.register(broker_registration(layouts=MANY[:-1], parts=2), 1, 2)
    assert table.register(broker_registration(layouts=(*MANY[-1:], layout("theirs")), part=1, parts=2), 1, 3).routed


def test_layout_changed_between_two_parts_is_returned_as_missing() -> None:
    table = RouteTable()
    table.register(broker_registration(layouts=(layout("t", 1),), parts=2), 1, 0)
    table.register(broker_registration("broker-b", store=STORE_B, layouts=(layout("t", 2),)), 9, 0)
    assert table.register(broker_registration(layouts=(layout("u"),), part=1, parts=2), 1, 1).missing == (layout("t", 2),)


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
def test_part_out_of_order_is_rejected_and_the_registration_restarts(parts: list[tuple[int, int]]) -> None:
    table = RouteTable()
    for part, count in parts[:-1]:
        table.register(broker_registration(part=part, parts=count), 1, 0)
    with pytest.raises(RemoteProtocolError):
        table.register(broker_registration(part=parts[-1][0], parts=parts[-1][1]), 1, 0)
    assert table.register(broker_registration(), 1, 0).routed


@pytest.mark.parametrize("parts", [1, 2])
def test_part_of_too_many_layouts_is_rejected(parts: int) -> None:
    table = RouteTable()
    with pytest.raises(RemoteProtocolError, match=f"part 0 of {parts} with {len(MANY)} layouts"):
        table.register(broker_registration(layouts=MANY, parts=parts), 1, 0)
    assert table.register(broker_registration(layouts=MANY[:-1]), 1, 0).routed


def test_connection_lost_between_two_parts_restarts_the_registration() -> None:
    table = RouteTable()
    table.register(broker_registration(parts=2), 1, 0)
    table.connection_closed(1, 0)
    with pytest.raises(RemoteProtocolError, match="out of order"):
        table.register(broker_registration(part=1, parts=2), 2, 0)


def test_up_to_64_partial_registrations_are_kept_and_a_stalled_one_expires() -> None:
    table = RouteTable()
    for number in range(INCOMPLETE_MAX):
        table.register(broker_registration(f"b-{number}", parts=2), number, 0)
    table.expire(INCOMPLETE_MS - 1)
    assert table.register(broker_registration("b-7", part=1, parts=2), 7, INCOMPLETE_MS - 1).routed
    table.expire(INCOMPLETE_MS)
    assert not table._incomplete
    with pytest.raises(RemoteProtocolError, match="out of order"):
        table.register(broker_registration("b-8", part=1, parts=2), 8, INCOMPLETE_MS)


def test_repeatedly_restarted_registrations_do_not_block_other_brokers() -> None:
    table = RouteTable()
    for now_ms in range(0, 20 * INCOMPLETE_MS, INCOMPLETE_MS - 1_000):
        for number in range(INCOMPLETE_MAX):
            table.register(broker_registration(f"b-{number}", parts=2), number, now_ms)
        table.expire(now_ms + 999)
        table.register(broker_registration(parts=2), 900, now_ms + 999)
        assert len(table._incomplete) <= INCOMPLETE_MAX
        assert table.register(broker_registration(part=1, parts=2), 900, now_ms + 999).routed


def test_oldest_partial_registration_is_evicted_for_a_new_one() -> None:
    table = RouteTable()
    for number in range(INCOMPLETE_MAX):
        table.register(broker_registration(f"b-{number}", parts=3), number, number)
    table.register(broker_registration("b-0", parts=3), 0, 1_000)  # begins again
    table.register(broker_registration("b-1", part=1, parts=3), 1, 1_000)
    table.register(broker_registration(parts=2), 900, 1_001)
    table.register(broker_registration("b-1", part=2, parts=3), 1, 1_002)
    with pytest.raises(RemoteProtocolError, match="out of order"):
        table.register(broker_registration("b-0", part=1, parts=3), 0, 1_002)


def test_suspension_of_the_nameserver_expires_no_partial_registration() -> None:
    table = RouteTable()
    table.register(broker_registration(parts=2), 1, 0)
    table.exclude_pause(INCOMPLETE_MS, INCOMPLETE_MS + 5)
    table.expire(INCOMPLETE_MS + 5)
    assert table.register(broker_registration(part=1, parts=2), 1, INCOMPLETE_MS + 5).routed


def test_response_has_one_part_of_the_missing_layouts_and_the_next_one_the_rest() -> None:
    table = RouteTable()
    for part, layouts in enumerate((MANY[:-1], MANY[-1:])):
        table.register(broker_registration("broker-b", store=STORE_B, layouts=layouts, part=part, parts=2), 9, 0)
    first = table.register(broker_registration(), 1, 0)
    assert (len(first.missing), first.routed) == (PART_LAYOUTS_MAX, False)
    table.register(broker_registration(layouts=first.missing[:1000], parts=2), 1, 1)
    second = table.register(broker_registration(layouts=first.missing[1000:], part=1, parts=2), 1, 1)
    assert (len(second.missing), second.routed) == (1, False)


def test_broker_is_registered_with_any_number_of_rejected_layouts_and_1024_are_named() -> None:
    table = RouteTable()
    wrong = tuple(TopicLayout(f"t-{number}", LayoutVersion(1, 7), (LayoutEntry("b", 2, 1, 1),)) for number in range(REFUSED_MAX + 2))
    first = table.register(broker_registration(layouts=wrong[:-3], parts=2), 1, 0)
    assert (len(first.refused), first.refused_more) == (REFUSED_MAX - 1, 0)
    last = table.register(broker_registration(layouts=(*wrong[-3:], layout()), part=1, parts=2), 1, 1)
    assert ([left_out.topic for left_out in last.refused], last.refused_more) == ([wrong[-3].topic], 2)
    assert (last.joined, last.routed, last.missing, table.layouts.all()) == (True, True, (), (layout(),))
