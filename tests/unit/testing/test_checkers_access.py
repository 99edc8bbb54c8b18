"""U1 to U5: users get what the rules in force allow, and nothing that belongs to another user."""

from typing import Any

import pytest

from lockstep.protocol.codes import RequestCode
from support.histories import B2, C1, C2, B, HistoryBuilder, Where, assert_faults
from sweep.checkers.access import allows, check
from sweep.events.access import Account, Answered, LockGivenUp, LoginAccepted, UsersInForce, UsersWritten
from sweep.events.locks import LockRefused, SessionBound
from sweep.history import ItemVerdict

NEEDS = ("Sub group:billing", "Sub topic:orders")
MEMBER, FORMER = Account("ann", ("old",), NEEDS), Account("ann", ("new",))
CLIENT_ID, PRODUCER_ID, LOCK = "client id c", "producer id p", "lock of c on billing orders:0"
USERS = HistoryBuilder().add(UsersWritten, 0, ("", 0), version=1, accounts=(MEMBER,)).add(UsersInForce, 0, version=1)
CHANGED = USERS.add(UsersWritten, 10, ("", 0), version=2, accounts=(FORMER,))
"""The rights and the password are gone from 10 on, at the broker from 12 on."""
READ = CHANGED.add(UsersInForce, 12, version=2)


def served(builder: HistoryBuilder, t: float, code: int = RequestCode.SYNC, **facts: Any) -> HistoryBuilder:
    where = facts.pop("where", B)
    return builder.add(Answered, t, where, **{"user": "ann", "code": code, "result": 0, "needs": NEEDS, "connection": 1} | facts)


def test_request_that_is_served_without_a_right_is_a_violation() -> None:
    assert_faults(check, {
        "with it": (served(USERS, 5), ""), "file not read": (served(CHANGED, 11), ""), "not any more": (served(READ, 13), "U1 U1"),
        "waited for the disk": (served(READ, 13, request_t=11.9), ""),
        "messages that waited": (served(READ, 13, request_t=11.9, gives=True), "U1 U1"),
        "refused": (served(READ, 13, needs=()), ""), "unknown user": (served(USERS, 5, user="bob"), "U1 U1"),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "need", "expected"),
    [
        ("Sub topic:orders", "Sub topic:orders", True),
        ("Pub,Sub topic:ord*", "Sub topic:orders", True),
        ("Sub topic:orders-*", "Sub topic:orders", False),
        ("Pub topic:orders", "Sub topic:orders", False),
        ("Get group:billing", "Sub,Get group:billing", True),
        ("Sub topic:*", "Sub topic:%RETRY%billing", False),
        ("Sub group:billing", "Sub topic:%RETRY%billing", True),
        ("Sub topic:* - Sub topic:orders", "Sub topic:orders", False),
    ],
)
def test_checker_reads_rules_as_the_page_on_permissions_has_them(rules: str, need: str, expected: bool) -> None:
    allow, _, deny = rules.partition(" - ")
    assert allows(Account("ann", (), (allow,), (deny,) if deny else ()), need) is expected


def test_change_that_a_running_server_does_not_read_in_time_is_a_violation() -> None:
    later = CHANGED.calm(30)
    assert_faults(check, {
        "read": (READ.calm(30), ""), "not read": (later, "U2"), "late": (later.add(UsersInForce, 17, version=2), "U2"),
        "a later version": (CHANGED.add(UsersWritten, 11, ("", 0), version=3, accounts=()).add(UsersInForce, 12, version=3).calm(30), ""),
        "paused": (later.suspended(11, 14, B), ""), "ended": (later.killed(14), ""), "not over": (CHANGED.calm(14), ""),
        "as before": (USERS.add(UsersWritten, 10, ("", 0), version=2, accounts=(MEMBER,)).calm(30), ""),
    })  # fmt: skip


def test_login_that_is_accepted_or_kept_without_its_password_is_a_violation() -> None:
    def login(builder: HistoryBuilder, t: float, password: str | None = "old") -> HistoryBuilder:
        return builder.add(LoginAccepted, t, user="ann", password=password)

    def used(builder: HistoryBuilder, t: float) -> HistoryBuilder:
        return served(builder, t, needs=())

    kept = login(READ, 5)
    assert_faults(check, {
        "accepted": (login(USERS, 5), ""), "gone": (login(READ, 13), "U3"), "new": (login(READ, 13, "new"), ""),
        "not known": (login(READ, 13, None), ""), "in time": (used(kept, 22), ""), "kept": (used(kept, 23), "U3"),
        "paused": (used(kept.suspended(13, 20, B), 23), ""), "another connection": (served(kept, 23, needs=(), connection=2), ""),
    })  # fmt: skip


def test_what_belongs_to_a_user_and_is_given_to_another_one_is_a_violation() -> None:
    def given(claim: str, t: float, user: str = "bob", builder: HistoryBuilder | None = None, **facts: Any) -> HistoryBuilder:
        owned = served(USERS, 1, needs=(), claims=(claim,)) if builder is None else builder
        return served(owned, t, user=user, needs=(), claims=(claim,), **{"connection": 2} | facts)

    heard = served(given(CLIENT_ID, 1, "ann", USERS, connection=1), 3, needs=())
    assert_faults(check, {
        "client id": (given(CLIENT_ID, 2), "U4"), "in its grace": (given(CLIENT_ID, 5, builder=heard), "U4"),
        "after it": (given(CLIENT_ID, 6.5, builder=heard), ""), "its own": (given(CLIENT_ID, 2, "ann"), ""),
        "producer id": (given(PRODUCER_ID, 900), "U4"), "after a restart": (given(PRODUCER_ID, 3, where=B2), "" ),
        "lock": (given(LOCK, 50), "U4"), "lapsed": (given(LOCK, 62), ""),
        "unlocked": (given(LOCK, 50).add(LockGivenUp, 40, C1, claim=LOCK), ""),
    })  # fmt: skip


def test_queue_that_a_member_without_rights_keeps_from_others_is_a_violation() -> None:
    def locked(builder: HistoryBuilder, *times: float) -> HistoryBuilder:
        for t in times:
            builder = served(builder, t, RequestCode.LOCK_BATCH_MQ, needs=())
        return builder

    def wanted(builder: HistoryBuilder, t: float, verdict: ItemVerdict = ItemVerdict.HELD, where: Where = B) -> HistoryBuilder:
        return builder.add(LockRefused, t, where, epoch=None, verdict=verdict)

    holds = READ.add(LoginAccepted, 1, user="ann").add(SessionBound, 2, C1).granted(3, 1)
    told = locked(holds, 12.5, 13, 14)
    assert_faults(check, {
        "kept": (wanted(told, 15), "U5"), "it may not know": (wanted(locked(holds, 11, 13, 14), 15), ""),
        "not told often": (wanted(told, 13.5), ""), "it waits": (wanted(told, 15, ItemVerdict.WAIT), ""),
        "moved": (wanted(told.granted(14.5, 2, C2), 15), ""), "restarted": (wanted(told, 15, where=B2), ""),
        "allowed again": (wanted(told.add(UsersInForce, 14.8, version=1), 15), ""),
    })  # fmt: skip
