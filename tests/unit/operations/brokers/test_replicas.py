"""Copies of brokers' logs: which are found, what is said of each, what a promotion would lose, and what `lockstep doctor` finds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from lockstep.dashboard.known_copies import KnownCopies
from lockstep.operations.brokers.ha_report import check_register, sentences, why_unserved
from lockstep.operations.brokers.replica_query import find_unserved, read_copies
from lockstep.operations.brokers.replicas import LogCopy, check_replicas
from lockstep.operations.changes.replica_promote import expected_loss, lacking
from lockstep.operations.progress import Reporter
from lockstep.protocol.bodies import BrokerAddress, RegisterStanding, ReplicaStanding, ReplicaStatus
from lockstep.protocol.errors import TransportError

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
STANDING = ReplicaStanding("b" * 16, B, in_set=True, connected=True, stored=1_000, applied=900, silent_ms=40)
MASTER = ReplicaStatus("broker-a", "C", "store", "master", "a" * 16, 7, 1_000, 1_000, 1_000, replicas=(STANDING,))
REPLICA = ReplicaStatus(
    "broker-a", "C", "store", "replica", "b" * 16, 7, 1_000, 1_000, 900, following=True, master=A, known={"a" * 16: A, "c" * 16: C}
)


class FakeAdmin:
    """Answers as the copies at these addresses do. `registered`: the address at which nameservers know broker-a; None: none responds."""

    reporter = Reporter()

    def __init__(self, copies: dict[str, ReplicaStatus], registered: str | None = A, others: tuple[str, ...] | None = None) -> None:
        """`others`: the addresses of copies that nameservers know besides."""
        self.others = others
        self.copies = copies
        self.registered = registered

    @asynccontextmanager
    async def keep_connections(self) -> AsyncIterator[None]:
        yield

    async def brokers(self) -> tuple[BrokerAddress, ...]:
        if self.registered is None:
            raise TransportError("no nameserver responds")
        return (BrokerAddress("broker-a", "C", self.registered, True, 7, self.others),)

    async def copy_status(self, address: str) -> ReplicaStatus:
        if address not in self.copies:
            raise TransportError(f"{address}: connection refused")
        return self.copies[address]


async def found(admin: FakeAdmin, *addresses: str) -> dict[str, LogCopy]:
    copies = await read_copies(admin, addresses=dict.fromkeys(addresses, ""))  # type: ignore[arg-type]
    assert len({each.address for each in copies}) == len(copies)
    return {each.address: each for each in copies}


@pytest.mark.parametrize(
    ("copies", "asked", "expected"),
    [
        ({A: replace(MASTER, member="", replicas=())}, (), {A: ("master", None, None, [])}),
        ({A: MASTER, B: replace(REPLICA, known={})}, (), {A: ("master", None, None, []), B: ("replica", True, 0, [])}),
        (  # the replica is down: its master knows it
            {A: replace(MASTER, replicas=(replace(STANDING, in_set=False, connected=False, stored=400, silent_ms=65_000),))},
            (),
            {
                A: ("master", None, None, []),
                B: ("replica", False, 600, [f"not reached: {B}: connection refused", "not connected for 65 s"]),
            },
        ),
        (  # the master is down: a replica names it, and another one
            {B: replace(REPLICA, following=False), C: replace(REPLICA, member="c" * 16, end=700, following=False)},
            (B,),
            {
                A: (None, None, None, [f"not reached: {A}: connection refused"]),
                B: ("replica", None, None, [f"does not follow {A}"]),
                C: ("replica", None, None, [f"does not follow {A}"]),
            },
        ),
        (  # the old master runs on beside the promoted one
            {A: MASTER, B: replace(MASTER, term=8, member="b" * 16, replicas=(replace(STANDING, member="a" * 16, address=A),))},
            (B,),
            {B: ("master", None, None, []), A: ("master", None, None, ["another master has the later term 8: stop this one"])},
        ),
        (  # reached at two addresses
            {A: MASTER, "localhost:10911": MASTER, B: replace(REPLICA, known={})},
            ("localhost:10911",),
            {"localhost:10911": ("master", None, None, []), B: ("replica", True, 0, [])},
        ),
        (
            {A: MASTER, B: replace(REPLICA, known={}, trouble="disk full")},
            (),
            {A: ("master", None, None, []), B: ("replica", True, 0, ["disk full"])},
        ),
        (
            {A: MASTER, B: replace(REPLICA, known={})},
            (C,),
            {A: ("master", None, None, []), B: ("replica", True, 0, []), C: (None, None, None, [f"not reached: {C}: connection refused"])},
        ),
    ],
)
async def test_copies_are_found_and_described(
    copies: dict[str, ReplicaStatus], asked: tuple[str, ...], expected: dict[str, tuple[Any, ...]]
) -> None:
    seen = await found(FakeAdmin(copies), *asked)
    assert {address: (each.role, each.in_set, each.behind, each.remarks) for address, each in seen.items()} == expected


async def test_replica_that_began_anew_does_not_hide_the_member_that_its_master_still_lists() -> None:
    new = replace(REPLICA, member="d" * 16, known={})
    standings = (replace(STANDING, in_set=False, connected=False), replace(STANDING, member="d" * 16))
    copies = await read_copies(FakeAdmin({A: replace(MASTER, replicas=standings), B: new}))  # type: ignore[arg-type]
    assert [(each.member, each.failure) for each in copies if each.address == B] == [
        ("d" * 16, ""),
        ("b" * 16, "another copy answers there"),
    ]


async def test_without_a_nameserver_a_copy_has_to_be_named() -> None:
    admin = FakeAdmin({A: MASTER, B: REPLICA}, registered=None)
    assert {*await found(admin, B)} == {A, B, C}
    with pytest.raises(TransportError, match="no nameserver responds"):
        await found(admin)


async def test_dashboard_still_shows_the_replicas_of_a_master_that_is_lost() -> None:
    admin = FakeAdmin({A: MASTER, B: replace(REPLICA, known={})})
    copies = KnownCopies(admin)  # type: ignore[arg-type]
    assert [each.address for each in await copies.read()] == [A, B]
    del admin.copies[A]
    admin.copies[B] = replace(admin.copies[B], following=False)
    for _ in range(2):
        assert [(each.address, bool(each.failure)) for each in await copies.read()] == [(A, True), (B, False)]
    admin.copies[A] = replace(MASTER, replicas=())
    del admin.copies[B]
    await copies.read()
    assert await copies.read() == [], "its master has forgotten it"


@pytest.mark.parametrize(
    ("changed", "words", "step"),
    [
        ({}, None, ""),
        ({"connected": False, "silent_ms": 65_000}, "has not been connected for 65 s", f"`lockstep replica forget broker-a {'b' * 16}`"),
        ({"trouble": "disk full"}, "can't store what it copies: disk full", "free some space"),
        ({"stored": 400}, "is 600 B behind", "`lockstep replica ls --broker broker-a`"),
    ],
)
def test_doctor_names_each_replica_that_is_not_in_the_set(changed: dict[str, Any], words: str | None, step: str) -> None:
    standing = replace(STANDING, in_set=words is None, **changed)
    (finding,) = check_replicas("broker-a", replace(MASTER, replicas=(standing,)))
    assert finding.where == f"broker-a replica {B}"
    assert (finding.problem or "").startswith(words or "")
    assert (finding.problem is None) == (words is None)
    assert step in finding.step
    assert check_replicas("broker-a", replace(MASTER, replicas=())) == []


ENTRY = RegisterStanding("witness://w:1", 400, "", 7, "a" * 16, ("a" * 16, "b" * 16), {"a" * 16: A, "b" * 16: B}, "grown")
DOWN = replace(ENTRY, read_ms=60_000, unreachable="refused")
ALONE = replace(ENTRY, in_sync=("a" * 16,))
OTHERS = replace(ENTRY, address="witness://other:1")
LOSSY = replace(ENTRY, assumed_loss=True)
RULES = replace(MASTER, register=ENTRY)
FOLLOWS = replace(REPLICA, register=ENTRY, known={})
LEFT = replace(FOLLOWS, following=False)
"""Its master is gone."""
UNCLEAN = f"`lockstep ha failover broker-a --to {B} --unclean`"


def reading(status: ReplicaStatus, register: RegisterStanding | None, **changed: Any) -> ReplicaStatus:
    return replace(status, register=register, **changed)


@pytest.mark.parametrize(
    ("copies", "check", "problem", "step"),
    [
        ({A: RULES, B: FOLLOWS}, "", "", ""),
        (
            {A: RULES, B: reading(FOLLOWS, OTHERS)},
            "one register",
            f"{B}: witness://other:1",
            "same --ha",
        ),
        ({A: RULES, B: reading(FOLLOWS, None)}, "one register", f"{B}: none", "same --ha"),
        (
            {A: RULES, B: reading(FOLLOWS, DOWN)},
            "register reached",
            "register witness://w:1: not reached (refused), last read 60 s ago",
            "start the register",
        ),
        ({A: RULES, B: reading(FOLLOWS, replace(ENTRY, read_ms=9_000))}, "register reached", "last read 9.0 s ago", "start the register"),
        (
            {A: reading(MASTER, RegisterStanding("witness://w:1", 9)), B: reading(FOLLOWS, DOWN)},
            "register entry",
            "register witness://w:1 has no entry of broker broker-a",
            f"`lockstep ha failover broker-a --to {A} --unclean --yes`",
        ),
        (
            {A: reading(MASTER, ENTRY, term=8), B: reading(FOLLOWS, ENTRY, term=8)},
            "register entry",
            "was set back to term 7, there was a term 8",
            f"--to {A} --unclean --yes`",
        ),
        (
            {A: reading(MASTER, LOSSY), B: FOLLOWS},
            "register entry",
            "term 7 began with an assumed loss",
            "ha failover",
        ),
        ({A: reading(MASTER, ALONE), B: reading(FOLLOWS, ALONE)}, "set of copies", f"Not in it: {B}", "`lockstep ha show broker-a`"),
        ({A: RULES, B: reading(FOLLOWS, ENTRY, member="d" * 16)}, "set of copies", f"{B} is in the set, and no copy", "start it"),
    ],
)
def test_doctor_checks_the_register_by_each_copy_and_what_it_says(
    copies: dict[str, ReplicaStatus], check: str, problem: str, step: str
) -> None:
    found = [LogCopy("broker-a", at, status.member, status) for at, status in copies.items()]
    checked = [*check_register("broker-a", found)]
    problems = {each.check: each for each in checked if each.problem is not None}
    assert why_unserved("broker-a", found) is None
    if not check:
        assert [(each.check, each.where) for each in checked] == [
            ("one register", "broker-a"),
            ("register reached", f"broker-a {A}"),
            ("register reached", f"broker-a {B}"),
            ("register entry", "broker-a"),
            ("set of copies", "broker-a"),
        ]
    assert check in problems or not (check or problems)
    if check:
        assert problem in (problems[check].problem or "")
        assert step in problems[check].step


@pytest.mark.parametrize(
    ("copies", "problem", "step"),
    [
        ({B: LEFT}, f"has no master: {B} is in its set", "wait: it is elected within seconds"),
        ({B: reading(LEFT, ENTRY, trouble="disk full")}, f"{B} is in its set, but disk full", "its log says why"),
        ({B: reading(LEFT, ALONE)}, f"only {A} has all that was acknowledged", f"{UNCLEAN} says what would be lost"),
        (
            {B: reading(LEFT, DOWN)},
            "register witness://w:1 is not reached (refused), last read 60 s ago; without it nobody can be elected",
            "start the register",
        ),
        ({B: reading(LEFT, RegisterStanding("witness://w:1", 9))}, "has no entry of broker broker-a", f"the one that has most: {UNCLEAN}"),
        (
            {B: reading(LEFT, ENTRY, term=8), C: reading(LEFT, ENTRY, member="c" * 16)},
            "was set back to term 7, there was a term 8",
            f"the one that has most: {UNCLEAN}",
        ),
        (
            {B: reading(LEFT, ENTRY, member="d" * 16, was=("a" * 16, "b" * 16))},
            "all copies of its set may lack what they had acknowledged",
            "start all other copies",
        ),
        ({B: reading(LEFT, None)}, f"has no master that answers; {B} has a copy", f"`lockstep replica promote {B}`"),
        (
            {A: reading(MASTER, DOWN, replicas=(replace(STANDING, silent_ms=4_000),))},
            f"has a master at {A} that reaches neither its register witness://w:1 nor {B}",
            "start the register, or the copy",
        ),
        ({A: reading(MASTER, DOWN)}, None, ""),
        ({A: reading(MASTER, ENTRY, replicas=(replace(STANDING, silent_ms=4_000),))}, None, ""),
        ({B: FOLLOWS}, None, ""),  # its master runs, and can't be reached from here
        ({}, None, ""),
    ],
)
async def test_copies_of_a_broker_that_does_not_serve_say_why(copies: dict[str, ReplicaStatus], problem: str | None, step: str) -> None:
    admin = FakeAdmin(copies, others=(B, C))
    unserved = await find_unserved(admin, await admin.brokers(), {"broker-a": "refused"})  # type: ignore[arg-type]
    assert bool(unserved) == (problem is not None)
    for finding in unserved.values():
        assert problem is not None
        assert problem in (finding.problem or "")
        assert step in finding.step
        if all(status.register for status in copies.values()):
            said = sentences("broker-a", await read_copies(admin))  # type: ignore[arg-type]
            assert said[-1] == f"broker broker-a {finding.problem}. Next: {finding.step}"
    assert await find_unserved(admin, await admin.brokers(), ()) == {}  # type: ignore[arg-type]


OTHER = LogCopy("broker-a", C, "c" * 16, replace(REPLICA, member="c" * 16, end=3_000))
LOST = LogCopy("broker-a", A, "", None, "connection refused")


@pytest.mark.parametrize(
    ("changed", "others", "force", "expected", "absent"),
    [
        ({"complete": True}, [LOST], False, ["nothing is lost"], ["generations"]),
        ({}, [], False, ["No other copy answers.", "The generations of all groups rise"], ["--force", "nothing is lost"]),
        ({}, [LOST], False, [f"Where the logs of {A} end is not known"], ["--force"]),
        ({}, [OTHER], False, ["Another copy has 2.0 kB more: its log ends at 3000.", f"It refuses without --force: the copy at {C}"], []),
        ({}, [OTHER], True, [f"With --force it is promoted although the copy at {C} has more, which would be lost."], ["refuses"]),
        ({"end": 3_000}, [OTHER, LOST], False, ["No other copy that answers has more. Where"], ["--force"]),
        ({"may_have_forgotten": True}, [], False, ["It refuses without --force: it may have lost messages that it had acknowledged"], []),
    ],
)
def test_plan_of_a_promotion_says_what_would_be_lost(
    changed: dict[str, Any], others: list[LogCopy], force: bool, expected: list[str], absent: list[str]
) -> None:
    text = " ".join(expected_loss(replace(REPLICA, following=False, **changed), others, force=force))
    assert all(each in text for each in expected), text
    assert not any(each in text for each in absent), text


def test_promotion_says_which_messages_and_whose_progress_another_copy_has_more_of() -> None:
    copy = replace(REPLICA, messages=1_000, consumed={"billing": 700, "mail": 40})
    other = replace(REPLICA, messages=3_500, consumed={"billing": 900, "mail": 40, "audit": 1_200})
    assert lacking(copy, other) == [
        "It lacks 2,500 messages that the other copy has.",
        "The progress of 2 groups goes back: audit by 1,200, billing by 200.",
    ]
    many = replace(other, consumed={f"g{number}": number for number in range(1, 9)})
    assert lacking(copy, many)[1] == "The progress of 8 groups goes back: g8 by 8, g7 by 7, g6 by 6, g5 by 5, g4 by 4 and 3 more."
    assert lacking(copy, replace(other, consumed={}))[1] == "The progress of no group goes back."
    assert lacking(REPLICA, other) == [], "a copy that is being installed counts nothing"
