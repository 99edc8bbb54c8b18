"""P-K1 to P-K3: what the calls, commits and copies of a group that parks keys show."""

import pytest

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, C2, LOG, B, HistoryBuilder, P, Q, epoch
from sweep.checkers.parks import check
from sweep.events.consumers import ConsumerStarted
from sweep.events.locks import GrantReceived, LockGranted
from sweep.events.parks import (
    ParkControlSent,
    ParkedListed,
    ParkedRow,
    ParkEndReceived,
    ParkEndResponded,
    ParkReceived,
    ParkResponded,
    ParkSent,
)
from sweep.events.universe import BrokerOpened, CopyStored, MessageStored, PauseBegan, PowerCut, ProcessEnded, QueuesConsumed
from sweep.history import CallResult

DLQ = LOG._replace(topic="%DLQ%billing")
SUSPEND = CallResult.SUSPEND


class Parking(HistoryBuilder):
    """C1 and C2 park keys. The final log has the messages m0, m1, … of these keys; "-" for no key."""

    def __init__(self, keys: str = "ababab", *, order_by: str = "sharding_key", stored_t: dict[int, float] | None = None) -> None:
        super().__init__()
        self.keys = keys
        for who in (C1, C2):
            self.add(ConsumerStarted, 0.1, who, lanes=4 if order_by == "sharding_key" else None, parks=1)
        for offset, key in enumerate(keys):
            facts = {"body": b"m%d" % offset, "key": None if key == "-" else key, "stored_t": (stored_t or {}).get(offset, 0.5)}
            self.add(MessageStored, 99, ("", 0), offset=offset, **facts)

    def calls(
        self, t: float, number: int, *offsets: int, result: CallResult = CallResult.SUCCESS, where: tuple[str, int] = C1
    ) -> "Parking":
        """Add a call that takes 10 ms."""
        keys = tuple(None if self.keys[offset] == "-" else self.keys[offset] for offset in offsets)
        self.call(t, t + 0.01, number, *offsets, result=result, where=where, keys=keys)
        return self

    def park(
        self, t: float, number: int, offset: int, *, code: int = 0, received_t: float | None = None, where: tuple[str, int] = C1
    ) -> "Parking":
        """Add a failed call and a PARK at t + 0.02, whose response arrives 2 ms later, or at `received_t`, or never if that is 0."""
        self.calls(t, number, offset, result=SUSPEND, where=where)
        facts = {"epoch": epoch(number), "offset": offset, "request": round(t * 1000)}
        self.add(ParkSent, t + 0.02, where, attempts=1, **facts)
        self.add(ParkResponded, t + 0.021, code=code, client=where[1], **facts)
        if received_t != 0:
            self.add(ParkReceived, received_t or t + 0.022, where, code=code, request_t=t + 0.02, **facts)
        return self

    def control(self, t: float, action: str, key: str | None = None) -> "Parking":
        self.add(ParkControlSent, t, P, action=action, key=key)
        return self

    def replay(self, t: float, number: int, key: str, offset: int, *, drop: bool = False, where: tuple[str, int] = C1) -> "Parking":
        """Add a LOCK with a renewal that names the key, after an operator has."""
        self.control(t - 0.01, "drop" if drop else "replay", key)
        self.named(t, number, key, offset, drop=drop, where=where)
        return self

    def named(self, t: float, number: int, key: str, offset: int, *, drop: bool = False, where: tuple[str, int] = C1) -> "Parking":
        facts = {"epoch": epoch(number), "renewal": True, "replays": ((key, offset, drop),), "session": "s1" if where == C1 else "s2"}
        self.add(LockGranted, t - 0.001, client=where[1], request_t=t - 0.002, **facts)
        self.add(GrantReceived, t, where, **facts)
        return self

    def reached(
        self,
        t: float,
        number: int,
        key: str,
        offset: int,
        *,
        upto: int | None = None,
        until: int | None = None,
        code: int = 0,
        where: tuple[str, int] = C1,
    ) -> "Parking":
        """Add a PARK_END and its response. With `upto` or `until` it asks for the end of the replay."""
        ends = upto is not None or until is not None
        facts = {"epoch": epoch(number), "key": key, "next": offset, "ends": ends, "code": code, "until": until, "upto": upto}
        self.add(ParkEndResponded, t - 0.001, client=where[1], **facts)
        self.add(ParkEndReceived, t, where, request_t=t - 0.002, **facts)
        return self

    def copied(self, *offsets: int) -> "Parking":
        """Add the dead letters of these messages."""
        for number, offset in enumerate(offsets):
            facts = {"offset": number, "body": b"m%d" % offset, "key": self.keys[offset], "retries": 0, "origin": ""}
            self.add(CopyStored, 100, ("", 0), queue=DLQ, **facts)
        return self

    def at_rest(self, t: float, *rows: tuple[str, int]) -> "Parking":
        """Consume the queue to its end; these keys are parked at these offsets."""
        self.add(QueuesConsumed, t, ("", 0))
        listed = tuple(ParkedRow(Q, key, offset, "parked") for key, offset in rows)
        self.add(ParkedListed, t + 0.1, rows=listed)
        return self

    def power_cut(self, t: float) -> "Parking":
        self.add(ProcessEnded, t, B, how="power").add(PowerCut, t, ("B", 0))
        self.add(BrokerOpened, t + 0.1, ("B", 2), flush="async", grace_ms=3_000)
        return self


def held(keys: str = "ababab", *, order_by: str = "sharding_key", offset: int = 0, stored_t: dict[int, float] | None = None) -> Parking:
    """C1 is granted the queue at 1."""
    builder = Parking(keys, order_by=order_by, stored_t=stored_t)
    builder.granted(1, 1, offset=offset)
    return builder


both_orders = pytest.mark.parametrize("order_by", ["queue", "sharding_key"])


@both_orders
def test_key_that_is_parked_replayed_and_brought_back_is_no_violation(order_by: str) -> None:
    builder = held("aabaab", order_by=order_by).calls(1.1, 1, 0).park(1.2, 1, 1).calls(1.3, 1, 2)
    builder.committed(1.4, 1, 4)
    builder.replay(2, 1, "a", 1).calls(2.1, 1, 1).reached(2.2, 1, "a", 2).calls(2.3, 1, 3).reached(2.4, 1, "a", 4, upto=4)
    builder.calls(2.5, 1, 4).calls(2.6, 1, 5).committed(3, 1, 6)
    assert builder.at_rest(4).broken(check) == []


# ----------------------------------------------------------------------------------------------------------------------- P-K1


@both_orders
def test_call_of_a_key_that_the_member_knows_to_be_parked_is_a_violation(order_by: str) -> None:
    builder = held(order_by=order_by).park(1.1, 1, 0)
    assert builder.calls(1.2, 1, 1).broken(check) == []
    assert builder.calls(1.3, 1, 0).broken(check) == ["P-K1"]


@pytest.mark.parametrize(
    "park", [{"received_t": 0}, {"received_t": 4.0}, {"code": ResponseCode.PARK_REFUSED}, {"code": ResponseCode.STALE_EPOCH}]
)
def test_member_that_does_not_know_that_a_key_is_parked_may_go_on_with_it(park: dict[str, float]) -> None:
    builder = held().park(1.1, 1, 0, **park)  # type: ignore[arg-type]
    assert builder.calls(5, 1, 0).calls(5.1, 1, 2).broken(check) == []


def test_response_that_a_paused_member_has_not_read_in_time_is_not_known_to_it() -> None:
    builder = held().park(1.1, 1, 0).add(PauseBegan, 1.121, C1)
    assert isinstance(builder, Parking)
    assert builder.calls(6, 1, 0).broken(check) == []


@both_orders
@pytest.mark.parametrize(("offset", "laws"), [(2, ["P-K1"]), (4, [])])
def test_message_below_the_end_of_a_replay_is_not_called_in_the_main_flow(order_by: str, offset: int, laws: list[str]) -> None:
    """Another member accepted it, so that this is not a second call under one grant."""
    builder = Parking(order_by=order_by)
    builder.granted(0.6, 1, C2)
    builder.calls(0.61, 1, 0, where=C2).calls(0.63, 1, 1, where=C2).park(0.7, 1, 2, where=C2)
    builder.control(0.8, "replay", "a").granted(1, 2, offset=0, replays=(("a", 2, False),))
    builder.calls(1.1, 2, 1).reached(1.2, 2, "a", 4, upto=4).copied(2).control(0.5, "drop", "a")
    if order_by == "queue":
        builder.calls(1.3, 2, 3)
    assert builder.calls(1.4, 2, offset).broken(check) == laws


@pytest.mark.parametrize(("cut_t", "laws"), [(None, ["P-K1"]), (2.5, [])])
def test_next_owner_calls_nothing_that_was_acknowledged_as_replayed_unless_a_power_cut_removed_that(
    cut_t: float | None, laws: list[str]
) -> None:
    builder = held().park(1.1, 1, 0).replay(2, 1, "a", 0).calls(2.1, 1, 0).reached(2.2, 1, "a", 1, upto=1)
    if cut_t is not None:
        builder.power_cut(cut_t)
    builder.granted(4, 2, C2)
    assert builder.calls(4.1, 2, 0, where=C2).broken(check) == laws


@pytest.mark.parametrize(("begin", "cut_t", "laws"), [(3, None, []), (2, None, ["P-K1"]), (2, 2.5, [])])
def test_replay_begins_where_the_last_one_was_acknowledged_to_be(begin: int, cut_t: float | None, laws: list[str]) -> None:
    builder = held("aaaa").park(1.1, 1, 0).replay(2, 1, "a", 0).calls(2.1, 1, 0).calls(2.2, 1, 1).calls(2.3, 1, 2).reached(2.4, 1, "a", 3)
    if cut_t is not None:
        builder.power_cut(cut_t)
    assert builder.named(4, 1, "a", begin).broken(check) == laws


def test_progress_of_a_replay_does_not_count_once_its_key_is_dropped() -> None:
    builder = held("aaaa").park(1.1, 1, 0).replay(2, 1, "a", 0).calls(2.1, 1, 0).control(2.2, "drop", "a").reached(2.3, 1, "a", 1)
    assert builder.named(3, 1, "a", 0, drop=True).broken(check) == []
    assert builder.reached(3.1, 1, "a", 4, upto=4).named(4, 1, "a", 3).broken(check) == ["P-K1"]


def test_replay_without_an_operator_or_from_before_the_parked_message_is_a_violation() -> None:
    assert held().calls(1.1, 1, 0).park(1.2, 1, 2).named(2, 1, "a", 2).broken(check) == ["P-K1"]
    assert held().calls(1.1, 1, 0).park(1.2, 1, 2).replay(2, 1, "a", 1).broken(check) == ["P-K1"]


@both_orders
@pytest.mark.parametrize(("commit", "laws"), [((1, ()), []), ((2, ()), ["P-K1"]), ((1, (3, 4)), ["P-K1"])])
def test_commit_passes_what_is_handled_or_waits_for_a_replay_and_nothing_else(
    order_by: str, commit: tuple[int, tuple[int, ...]], laws: list[str]
) -> None:
    builder = held(order_by=order_by).park(1.1, 1, 0)
    assert builder.committed(2, 1, commit[0], done=commit[1]).broken(check) == laws
    assert held(order_by=order_by).park(1.1, 1, 0).calls(1.2, 1, 1).calls(1.3, 1, 3).committed(2, 1, 6).broken(check) == ["P-K1"]


def test_call_of_what_the_grant_passes_over_is_a_violation() -> None:
    builder = Parking("abcd")
    builder.granted(1, 1, offset=1, done=(2, 3))
    assert builder.calls(1.1, 1, 0).broken(check) == ["P-K1"]
    assert builder.calls(1.2, 1, 2).broken(check) == ["P-K1", "P-K1"]


def test_copy_of_a_key_that_was_not_dropped_is_a_violation() -> None:
    builder = held().park(1.1, 1, 0).copied(0, 2)
    assert builder.broken(check) == ["P-K1", "P-K1"]
    assert builder.control(1.2, "drop").broken(check) == []


@pytest.mark.parametrize(("ended", "laws"), [(False, ["P-K1"]), (True, [])])
def test_message_is_copied_once_unless_the_broker_ended_meanwhile(ended: bool, laws: list[str]) -> None:
    builder = held().park(1.1, 1, 0).control(1.2, "drop", "a").copied(0, 0, 2)
    if ended:
        builder.add(ProcessEnded, 1.3, B, how="kill")
    assert builder.broken(check) == laws


@pytest.mark.parametrize(("dropped_t", "laws"), [(2.15, []), (3, ["P-K1"])])
def test_message_that_was_acknowledged_before_its_key_was_dropped_is_not_copied(dropped_t: float, laws: list[str]) -> None:
    builder = held().park(1.1, 1, 0).replay(2, 1, "a", 0).calls(2.1, 1, 0).reached(2.2, 1, "a", 1)
    assert builder.control(dropped_t, "drop", "a").copied(0, 2, 4).broken(check) == laws


# ----------------------------------------------------------------------------------------------------------------------- P-K2


@both_orders
def test_later_message_of_a_key_before_an_earlier_one_is_a_violation(order_by: str) -> None:
    builder = held(order_by=order_by).park(1.1, 1, 0, received_t=0)
    assert builder.calls(1.2, 1, 1).calls(1.3, 1, 2).broken(check) == ["P-K2"]
    assert builder.copied(0).control(1.15, "drop", "a").broken(check) == [], "it was dropped"


def test_order_is_that_of_the_first_acceptances_and_of_the_messages_that_were_stored_by_then() -> None:
    builder = held().calls(1.1, 1, 0).calls(1.2, 1, 2)
    builder.granted(2, 2, C2)
    builder.calls(2.1, 2, 0, where=C2).calls(2.2, 2, 2, where=C2)
    assert builder.broken(check) == []
    lost = held(stored_t={0: 3.0}).calls(1.1, 1, 2)
    assert lost.broken(check) == [], "another message had the offset 0, which a power cut has removed"


@both_orders
@pytest.mark.parametrize(("cut_t", "laws"), [(None, ["P-K1", "P-K2"]), (1.5, [])])
def test_message_that_got_its_offset_after_a_loss_is_not_missing_in_an_earlier_grant(
    order_by: str, cut_t: float | None, laws: list[str]
) -> None:
    builder = held("aba", order_by=order_by, stored_t={0: 1.8, 1: 1.8}).calls(1.2, 1, 1)
    if cut_t is not None:
        builder.power_cut(cut_t)
    builder.calls(2, 1, 2).committed(2.1, 1, 3)
    assert builder.broken(check) == laws


def test_messages_of_one_batch_are_in_their_order() -> None:
    assert held("aaa").calls(1.1, 1, 0, 1, 2).broken(check) == []
    assert held("aaa").calls(1.1, 1, 0, 2).broken(check) == ["P-K2"]


@both_orders
def test_accepted_message_is_not_called_again_under_the_same_grant(order_by: str) -> None:
    builder = held(order_by=order_by).calls(1.1, 1, 0, result=SUSPEND).calls(1.2, 1, 0)
    assert builder.broken(check) == []
    laws = ["P-K2", "P-K2"] if order_by == "queue" else ["P-K2"]
    assert builder.calls(1.3, 1, 0).broken(check) == laws


@both_orders
def test_what_a_park_without_a_known_result_may_have_parked_may_be_called_again(order_by: str) -> None:
    builder = held(order_by=order_by).park(1.1, 1, 0, received_t=0).calls(1.2, 1, 0).calls(1.25, 1, 1).calls(1.3, 1, 2)
    builder.replay(2, 1, "a", 0)
    assert builder.calls(2.1, 1, 0).calls(2.2, 1, 2).calls(2.3, 1, 4).broken(check) == []


def test_replay_goes_forward() -> None:
    builder = held("aaaa").park(1.1, 1, 0).replay(2, 1, "a", 0).calls(2.1, 1, 0).calls(2.2, 1, 1, result=SUSPEND).calls(2.3, 1, 1)
    assert builder.broken(check) == []
    again = Parking("aaaa")
    again.granted(0.6, 1, C2).calls(0.7, 1, 0, where=C2).park(0.8, 1, 1, where=C2)
    again.control(0.9, "replay", "a").granted(1, 2, offset=2, replays=(("a", 1, False),))
    assert again.calls(1.1, 2, 0).broken(check) == ["P-K2"]


@pytest.mark.parametrize(("order_by", "laws"), [("queue", ["P-K2"]), ("sharding_key", [])])
def test_in_the_order_of_queues_other_keys_overtake_parked_ones_only(order_by: str, laws: list[str]) -> None:
    builder = held("abc", order_by=order_by).park(1.1, 1, 0)
    assert builder.calls(1.2, 1, 2).broken(check) == laws
    assert held("abc", order_by=order_by).park(1.1, 1, 0).calls(1.2, 1, 1).calls(1.3, 1, 2).broken(check) == []


def test_copies_of_a_key_are_in_the_order_of_the_queue() -> None:
    builder = held().park(1.1, 1, 0).control(1.2, "drop", "a")
    assert builder.copied(0, 4, 2).broken(check) == ["P-K2"]
    again = held().park(1.1, 1, 0).control(1.2, "drop", "a").add(ProcessEnded, 1.3, B, how="kill")
    assert isinstance(again, Parking)
    assert again.copied(0, 2, 0, 2, 4).broken(check) == [], "the broker has begun again"


# ----------------------------------------------------------------------------------------------------------------------- P-K3


@pytest.mark.parametrize(("rows", "laws"), [((("a", 0), ("b", 3)), []), ((("a", 0),), ["P-K3"]), ((("a", 2), ("b", 3)), ["P-K3"])])
def test_consumed_queue_has_only_messages_of_parked_keys_left(rows: tuple[tuple[str, int], ...], laws: list[str]) -> None:
    builder = held("abab").park(1.1, 1, 0).calls(1.2, 1, 1).park(1.3, 1, 3)
    assert builder.at_rest(5, *rows).broken(check) == laws


def test_message_that_is_accepted_before_the_keys_are_listed_is_not_held_up() -> None:
    builder = held("a").park(1.1, 1, 0).replay(4.9, 1, "a", 0)
    assert builder.at_rest(5).calls(5.05, 1, 0).broken(check) == []


def test_groups_that_do_not_park_are_not_checked() -> None:
    builder = HistoryBuilder().granted(1, 1).call(1.1, 1.2, 1, 3, keys=("a",)).call(1.3, 1.4, 1, 2, keys=("a",))
    assert builder.add(ConsumerStarted, 0.1, C1, lanes=4).broken(check) == []
