"""P-K1 to P-K3: what the calls, commits and copies of a group that parks keys show."""

from typing import Self

import pytest

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, C2, LOG, HistoryBuilder, P, Q, Where, assert_faults, epoch
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
from sweep.events.universe import CopyStored, MessageStored, PauseBegan, QueuesConsumed
from sweep.history import CallResult

DLQ = LOG._replace(topic="%DLQ%billing")
SUSPEND, REFUSED, STALE = CallResult.SUSPEND, ResponseCode.PARK_REFUSED, ResponseCode.STALE_EPOCH


class Parking(HistoryBuilder):
    """C1 and C2 park keys. The final log has the messages m0, m1, … of these keys."""

    def __init__(self, keys: str = "ababab", *, order_by: str = "sharding_key", stored_t: dict[int, float] | None = None) -> None:
        super().__init__()
        self.keys = keys
        after: HistoryBuilder = self
        for who in (C1, C2):
            after = after.add(ConsumerStarted, 0.1, who, lanes=4 if order_by == "sharding_key" else None, parks=1)
        for offset, key in enumerate(keys):
            facts = {"body": b"m%d" % offset, "key": key, "stored_t": (stored_t or {}).get(offset, 0.5)}
            after = after.add(MessageStored, 99, ("", 0), offset=offset, **facts)
        self._events = after._events

    def calls(self, t: float, number: int, *offsets: int, result: CallResult = CallResult.SUCCESS, where: Where = C1) -> Self:
        """Add a call that takes 10 ms."""
        keys = tuple(self.keys[offset] for offset in offsets)
        return self.call(t, t + 0.01, number, *offsets, result=result, where=where, keys=keys)

    def park(self, t: float, number: int, offset: int, *, code: int = 0, received_t: float | None = None, where: Where = C1) -> Self:
        """Add a failed call and a PARK at t + 0.02, whose response arrives 2 ms later, or at `received_t`, or never if that is 0."""
        facts = {"epoch": epoch(number), "offset": offset, "request": round(t * 1000)}
        failed = self.calls(t, number, offset, result=SUSPEND, where=where).add(ParkSent, t + 0.02, where, attempts=1, **facts)
        responded = failed.add(ParkResponded, t + 0.021, code=code, client=where[1], **facts)
        if received_t == 0:
            return responded
        return responded.add(ParkReceived, received_t or t + 0.022, where, code=code, request_t=t + 0.02, **facts)

    def control(self, t: float, action: str, key: str | None = None) -> Self:
        return self.add(ParkControlSent, t, P, action=action, key=key)

    def replay(self, t: float, number: int, key: str, offset: int) -> Self:
        """Add a LOCK with a renewal that names the key, after an operator has."""
        return self.control(t - 0.01, "replay", key).named(t, number, key, offset)

    def named(self, t: float, number: int, key: str, offset: int, *, drop: bool = False) -> Self:
        facts = {"epoch": epoch(number), "renewal": True, "replays": ((key, offset, drop),), "session": "s1"}
        return self.add(LockGranted, t - 0.001, request_t=t - 0.002, **facts).add(GrantReceived, t, C1, **facts)

    def reached(self, t: float, number: int, key: str, offset: int, *, upto: int | None = None) -> Self:
        """Add a PARK_END and its response. With `upto` it asks for the end of the replay."""
        facts = {"epoch": epoch(number), "key": key, "next": offset, "ends": upto is not None, "code": 0, "until": None, "upto": upto}
        return self.add(ParkEndResponded, t - 0.001, **facts).add(ParkEndReceived, t, C1, request_t=t - 0.002, **facts)

    def copied(self, *offsets: int) -> Self:
        """Add the dead letters of these messages."""
        after = self
        for number, offset in enumerate(offsets):
            facts = {"offset": number, "body": b"m%d" % offset, "key": self.keys[offset], "retries": 0, "origin": ""}
            after = after.add(CopyStored, 100, ("", 0), queue=DLQ, **facts)
        return after

    def at_rest(self, t: float, *rows: tuple[str, int]) -> Self:
        """Consume the queue to its end; these keys are parked at these offsets."""
        listed = tuple(ParkedRow(Q, key, offset, "parked") for key, offset in rows)
        return self.add(QueuesConsumed, t, ("", 0)).add(ParkedListed, t + 0.1, rows=listed)


def held(keys: str = "ababab", *, order_by: str = "sharding_key", offset: int = 0, stored_t: dict[int, float] | None = None) -> Parking:
    """C1 is granted the queue at 1."""
    return Parking(keys, order_by=order_by, stored_t=stored_t).granted(1, 1, offset=offset)


def parked(keys: str = "ababab", *, order_by: str = "sharding_key") -> Parking:
    """The first message of a is parked."""
    return held(keys, order_by=order_by).park(1.1, 1, 0)


def unknown(order_by: str = "sharding_key") -> Parking:
    """The response to the PARK never arrives."""
    return held(order_by=order_by).park(1.1, 1, 0, received_t=0)


REPLAYED = parked().replay(2, 1, "a", 0).calls(2.1, 1, 0)
"""An operator lets a be replayed, of which C1 handles the first message."""
both_orders = pytest.mark.parametrize("order_by", ["queue", "sharding_key"])


@both_orders
def test_key_that_is_parked_replayed_and_brought_back_is_no_violation(order_by: str) -> None:
    builder = held("aabaab", order_by=order_by).calls(1.1, 1, 0).park(1.2, 1, 1).calls(1.3, 1, 2).committed(1.4, 1, 4)
    builder = builder.replay(2, 1, "a", 1).calls(2.1, 1, 1).reached(2.2, 1, "a", 2).calls(2.3, 1, 3).reached(2.4, 1, "a", 4, upto=4)
    assert_faults(check, {"the end": (builder.calls(2.5, 1, 4).calls(2.6, 1, 5).committed(3, 1, 6).at_rest(4), "")})


@both_orders
def test_call_of_a_key_that_the_member_knows_to_be_parked_is_a_violation(order_by: str) -> None:
    def uninformed(received_t: float | None = None, code: int = 0) -> Parking:
        return held(order_by=order_by).park(1.1, 1, 0, received_t=received_t, code=code).calls(5, 1, 0)

    paused = parked(order_by=order_by).add(PauseBegan, 1.121, C1).calls(6, 1, 0)
    assert_faults(check, {
        "another key": (parked(order_by=order_by).calls(1.2, 1, 1), ""), "the key": (parked(order_by=order_by).calls(1.3, 1, 0), "P-K1"),
        "no response": (uninformed(0), ""), "a late response": (uninformed(4.0), ""), "refused": (uninformed(code=REFUSED), ""),
        "stale": (uninformed(code=STALE), ""), "paused before it has read the response": (paused, ""),
    })  # fmt: skip


@both_orders
def test_message_below_the_end_of_a_replay_is_not_called_in_the_main_flow(order_by: str) -> None:
    """Another member accepted it, so that this is not a second call under one grant."""

    def called(offset: int) -> Parking:
        builder = Parking(order_by=order_by).granted(0.6, 1, C2)
        builder = builder.calls(0.61, 1, 0, where=C2).calls(0.63, 1, 1, where=C2).park(0.7, 1, 2, where=C2)
        builder = builder.control(0.8, "replay", "a").granted(1, 2, offset=0, replays=(("a", 2, False),))
        builder = builder.calls(1.1, 2, 1).reached(1.2, 2, "a", 4, upto=4).copied(2).control(0.5, "drop", "a")
        if order_by == "queue":
            builder = builder.calls(1.3, 2, 3)
        return builder.calls(1.4, 2, offset)

    assert_faults(check, {"below the end": (called(2), "P-K1"), "at the end": (called(4), "")})


def test_replay_begins_where_the_last_one_was_acknowledged_to_be() -> None:
    """The next owner calls nothing before it. A power cut may remove that; progress does not count once the key is dropped."""
    next_owner = REPLAYED.reached(2.2, 1, "a", 1, upto=1).granted(4, 2, C2).calls(4.1, 2, 0, where=C2)
    first = parked("aaaa").replay(2, 1, "a", 0).calls(2.1, 1, 0)
    third = first.calls(2.2, 1, 1).calls(2.3, 1, 2).reached(2.4, 1, "a", 3)
    dropped = first.control(2.2, "drop", "a").reached(2.3, 1, "a", 1).named(3, 1, "a", 0, drop=True)
    not_first = held().calls(1.1, 1, 0).park(1.2, 1, 2)
    assert_faults(check, {
        "the next owner": (next_owner, "P-K1"), "the next owner, after a cut": (next_owner.power_cut(2.5, 2.6), ""),
        "there": (third.named(4, 1, "a", 3), ""), "before it": (third.named(4, 1, "a", 2), "P-K1"),
        "before it, after a cut": (third.named(4, 1, "a", 2).power_cut(2.5, 2.6), ""),
        "dropped": (dropped, ""), "dropped and copied": (dropped.reached(3.1, 1, "a", 4, upto=4).named(4, 1, "a", 3), "P-K1"),
        "no operator": (not_first.named(2, 1, "a", 2), "P-K1"), "before the parked message": (not_first.replay(2, 1, "a", 1), "P-K1"),
    })  # fmt: skip


@both_orders
def test_commit_passes_what_is_handled_or_waits_for_a_replay_and_nothing_else(order_by: str) -> None:
    def committed(upto: int, *done: int) -> Parking:
        return parked(order_by=order_by).committed(2, 1, upto, done=done)

    passed = Parking("abcd", order_by=order_by).granted(1, 1, offset=1, done=(2, 3)).calls(1.1, 1, 0).calls(1.2, 1, 2)
    later = parked(order_by=order_by).calls(1.2, 1, 1).calls(1.3, 1, 3).committed(2, 1, 6)
    assert_faults(check, {
        "parked": (committed(1), ""), "not handled": (committed(2), "P-K1"), "done, not handled": (committed(1, 3, 4), "P-K1"),
        "not handled after it": (later, "P-K1"), "called though the grant passes it": (passed, "P-K1 P-K1"),
    })  # fmt: skip


def test_message_that_was_acknowledged_before_its_key_was_dropped_is_not_copied() -> None:
    """Only dropped keys are copied, each message once unless the broker ended meanwhile, in the order of the queue."""
    dropped = parked().control(1.2, "drop", "a")
    acknowledged = REPLAYED.reached(2.2, 1, "a", 1).copied(0, 2, 4)
    assert_faults(check, {
        "not dropped": (parked().copied(0, 2), "P-K1 P-K1"), "all are dropped": (parked().copied(0, 2).control(1.2, "drop"), ""),
        "twice": (dropped.copied(0, 0, 2), "P-K1"), "twice, and the broker ended": (dropped.copied(0, 0, 2).killed(1.3), ""),
        "dropped before": (acknowledged.control(2.15, "drop", "a"), ""), "dropped after": (acknowledged.control(3, "drop", "a"), "P-K1"),
        "out of order": (dropped.copied(0, 4, 2), "P-K2"), "begun again": (dropped.killed(1.3).copied(0, 2, 0, 2, 4), ""),
    })  # fmt: skip


@both_orders
def test_later_message_of_a_key_before_an_earlier_one_is_a_violation(order_by: str) -> None:
    late = unknown(order_by).calls(1.2, 1, 1).calls(1.3, 1, 2)
    # Another message had the offset 0.
    reused = held("aba", order_by=order_by, stored_t={0: 1.8, 1: 1.8}).calls(1.2, 1, 1).calls(2, 1, 2).committed(2.1, 1, 3)
    assert_faults(check, {
        "late": (late, "P-K2"), "dropped": (late.copied(0).control(1.15, "drop", "a"), ""),
        "stored before": (reused, "P-K1 P-K2"), "stored after a cut": (reused.power_cut(1.5, 1.6), ""),
    })  # fmt: skip


@both_orders
def test_what_a_park_without_a_known_result_may_have_parked_may_be_called_again(order_by: str) -> None:
    """Else an accepted message is not called again under the same grant."""
    builder = unknown(order_by).calls(1.2, 1, 0).calls(1.25, 1, 1).calls(1.3, 1, 2).replay(2, 1, "a", 0)
    repeated = held(order_by=order_by).calls(1.1, 1, 0, result=SUSPEND).calls(1.2, 1, 0)
    assert_faults(check, {
        "in doubt": (builder.calls(2.1, 1, 0).calls(2.2, 1, 2).calls(2.3, 1, 4), ""), "failed": (repeated, ""),
        "accepted": (repeated.calls(1.3, 1, 0), "P-K2 P-K2" if order_by == "queue" else "P-K2"),
    })  # fmt: skip


def test_order_is_that_of_the_first_acceptances_and_of_the_messages_that_were_stored_by_then() -> None:
    """A replay goes forward. In the order of queues other keys overtake parked ones only."""
    twice = held().calls(1.1, 1, 0).calls(1.2, 1, 2).granted(2, 2, C2).calls(2.1, 2, 0, where=C2).calls(2.2, 2, 2, where=C2)
    failed = parked("aaaa").replay(2, 1, "a", 0).calls(2.1, 1, 0).calls(2.2, 1, 1, result=SUSPEND).calls(2.3, 1, 1)
    again = Parking("aaaa").granted(0.6, 1, C2).calls(0.7, 1, 0, where=C2).park(0.8, 1, 1, where=C2)
    again = again.control(0.9, "replay", "a").granted(1, 2, offset=2, replays=(("a", 1, False),)).calls(1.1, 2, 0)

    def overtaking(order_by: str, *offsets: int) -> Parking:
        builder = parked("abc", order_by=order_by)
        for number, offset in enumerate(offsets):
            builder = builder.calls(1.2 + number / 10, 1, offset)
        return builder

    assert_faults(check, {
        "twice": (twice, ""), "not stored": (held(stored_t={0: 3.0}).calls(1.1, 1, 2), ""),
        "one batch": (held("aaa").calls(1.1, 1, 0, 1, 2), ""), "a hole in a batch": (held("aaa").calls(1.1, 1, 0, 2), "P-K2"),
        "failed in a replay": (failed, ""), "back in a replay": (again, "P-K2"),
        "queue": (overtaking("queue", 2), "P-K2"), "queue, in order": (overtaking("queue", 1, 2), ""),
        "key": (overtaking("sharding_key", 2), ""), "key, in order": (overtaking("sharding_key", 1, 2), ""),
    })  # fmt: skip


def test_consumed_queue_has_only_messages_of_parked_keys_left() -> None:
    """Or one that is accepted before the keys are listed. Groups that do not park are not checked."""

    def rest(*rows: tuple[str, int]) -> Parking:
        return parked("abab").calls(1.2, 1, 1).park(1.3, 1, 3).at_rest(5, *rows)

    other = HistoryBuilder().granted(1, 1).call(1.1, 1.2, 1, 3, keys=("a",)).call(1.3, 1.4, 1, 2, keys=("a",))
    assert_faults(check, {
        "both": (rest(("a", 0), ("b", 3)), ""), "only a": (rest(("a", 0)), "P-K3"), "a from 2 on": (rest(("a", 2), ("b", 3)), "P-K3"),
        "accepted then": (parked("a").replay(4.9, 1, "a", 0).at_rest(5).calls(5.05, 1, 0), ""),
        "no parking": (other.add(ConsumerStarted, 0.1, C1, lanes=4), ""),
    })  # fmt: skip
