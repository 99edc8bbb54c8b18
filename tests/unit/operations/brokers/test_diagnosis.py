"""Each finding of `lockstep doctor`: when it is reported, and that it names the next step."""

from dataclasses import replace

import pytest

from lockstep.operations.brokers import diagnosis
from lockstep.operations.brokers.diagnosis import CLOCK_MS_MAX, Finding
from lockstep.operations.groups.group_report import GroupReport, MemberLine
from lockstep.protocol.bodies import (
    BrokerAddress,
    BrokerStatus,
    GroupSettings,
    GroupStatusReply,
    GroupSummary,
    NameserverStanding,
    SubscriptionPolicy,
)

NOW = 1_700_000_000_000
A = BrokerAddress("broker-a", "DefaultCluster", "10.0.0.1:10911", True, 7)
STATUS = BrokerStatus(
    broker_name="broker-a",
    cluster="DefaultCluster",
    store_id="5" * 32,
    term=7,
    listeners={"internal": A.address},
    wall_ms=NOW,
    up_ms=1,
    log_bytes=1,
    disk_total_bytes=1_000 << 20,
    disk_free_bytes=500 << 20,
    disk_reserve_bytes=50 << 20,
    nameservers=(NameserverStanding("n1:9876", "accepted"),),
    descriptor_limit=4_096,
    damaged_messages=0,
    damaged_bytes=0,
    topics_deleted=0,
    topics_deleted_max=65_536,
    delayed_messages=0,
)
MEMBER = MemberLine("client-1", "89abcdef", "10.0.0.9:5555", True, 1, ("orders",), {"orders": "*"}, ())
SETTINGS = GroupSettings("billing", SubscriptionPolicy.CLASSIC, consume_enable=False)


def problems(findings: list[Finding]) -> list[tuple[str, str]]:
    for finding in findings:
        assert (finding.problem is None) == (finding.step == ""), "who names a problem names the next step"
    return [(finding.check, finding.problem) for finding in findings if finding.problem is not None]


def problems_of_broker(
    status: BrokerStatus | None, address: BrokerAddress = A, *, reason: str = "", took_ms: int = 0, topic_count: int = 1
) -> list[tuple[str, str]]:
    return problems(diagnosis.check_broker(address, status, reason, NOW, took_ms, topic_count))


def test_healthy_broker_has_no_problem_and_all_checks_are_listed() -> None:
    assert problems_of_broker(STATUS) == []
    checks = {finding.check for finding in diagnosis.check_broker(A, STATUS, "", NOW, 0, 1)}
    of_store = {"store writable", "store whole", "file descriptors", "deleted topics", "old files removed", "timers delivered"}
    assert checks == {"broker reached", "clock", *of_store, "broker registered"}


@pytest.mark.parametrize(("limit", "words"), [(1 << 20, []), (4_096, []), (4_095, ["4095"]), (256, ["256"])])
def test_low_limit_of_file_descriptors_is_a_problem(limit: int, words: list[str]) -> None:
    found = [f"its limit of {each} file descriptors leaves room for few connections" for each in words]
    assert problems_of_broker(replace(STATUS, descriptor_limit=limit)) == [("file descriptors", each) for each in found]


def test_messages_that_are_due_and_cannot_be_delivered_are_a_problem_of_each_topic() -> None:
    status = replace(STATUS, deferred_timers={"orders": 40, "bills": 1, "": 2})
    found = [each for each in diagnosis.check_broker(A, status, "", NOW, 0, 1) if each.check == "timers delivered"]
    assert [each.problem for each in found] == [
        "2 messages are due and can't be read: they are tried again each second",
        "1 messages to topic bills are due and can't be delivered now: they are tried again each second",
        "40 messages to topic orders are due and can't be delivered now: they are tried again each second",
    ]
    assert ["timer.unreadable" in found[0].step, "lockstep timer ls bills" in found[1].step] == [True, True]


def test_log_that_messages_hold_is_a_problem() -> None:
    status = replace(STATUS, held_log="2 messages that wait can't be stored again: the disk is full")
    words = "old files of its log are not removed: 2 messages that wait can't be stored again: the disk is full"
    assert problems_of_broker(status) == [("old files removed", words)]


@pytest.mark.parametrize(("count", "limit", "problem"), [(0, 65_536, False), (32_767, 65_536, False), (32_768, 65_536, True)])
def test_remembered_deletions_at_half_of_the_limit_are_a_problem(count: int, limit: int, problem: bool) -> None:
    found = problems_of_broker(replace(STATUS, topics_deleted=count, topics_deleted_max=limit))
    words = "it remembers 32768 deleted topics; from 65536 on, topics with new names can't be created"
    assert found == ([("deleted topics", words)] if problem else [])


@pytest.mark.parametrize(
    ("brokers", "words"),
    [
        (None, "does not respond: refused"),
        ((), "knows no registered broker"),
        ((replace(A, registered=False),), "knows no registered broker"),
    ],
)
def test_nameserver_must_respond_and_know_a_broker(brokers: tuple[BrokerAddress, ...] | None, words: str) -> None:
    assert problems([diagnosis.check_nameserver("n1:9876", brokers, "refused")]) == [("nameserver", words)]
    assert problems([diagnosis.check_nameserver("n1:9876", (A,))]) == []


@pytest.mark.parametrize(
    "reason", ["UNAUTHENTICATED: n1:9876, user a: …", "n1:9876: the certificate has expired", "n1:9876: … requires TLS"]
)
def test_nameserver_that_cannot_be_used_with_these_settings_is_not_to_be_started(reason: str) -> None:
    finding = diagnosis.check_nameserver("n1:9876", None, reason)
    assert finding.problem == f"can't be used with these settings: {reason}"
    assert finding.step == "correct the user, the password or the settings of TLS of --nameserver (docs/security.md, Errors)"


def test_broker_must_be_registered_and_respond_at_its_advertised_address() -> None:
    lost = problems_of_broker(None, replace(A, registered=False), topic_count=3)
    assert lost == [("broker registered", "is not registered now, and 3 topics have queues there")]
    assert problems_of_broker(None, replace(A, registered=False), topic_count=0) == [], "it was drained"
    unknown = diagnosis.check_unknown_broker("broker-z", 2)
    assert problems([unknown]) == [("broker registered", "no nameserver knows its address, and 2 topics have queues there")]
    assert "lockstep broker remove broker-z" in unknown.step
    assert problems_of_broker(None, reason="10.0.0.1:10911: timed out") == [
        ("broker reached", "can't be reached from here: 10.0.0.1:10911: timed out")
    ]
    (denied,) = problems_of_broker(None, reason="NO_PERMISSION: user b may not Get cluster")
    assert denied == ("broker reached", "does not tell its status: NO_PERMISSION: user b may not Get cluster")
    assert problems_of_broker(replace(STATUS, broker_name="broker-b")) == [
        ("broker reached", "broker-b responds there: two brokers advertise one address")
    ]


@pytest.mark.parametrize(
    ("apart_ms", "took_ms", "words"),
    [
        (CLOCK_MS_MAX, 0, None),
        (-CLOCK_MS_MAX, 0, None),
        (CLOCK_MS_MAX + 1, 0, "its clock is 2.0 s ahead of this machine's"),
        (-CLOCK_MS_MAX - 1_000, 0, "its clock is 3.0 s behind this machine's"),
        (-CLOCK_MS_MAX - 1_000, 1_000, None),
    ],
)
def test_clock_difference_beyond_the_response_time_and_a_tolerance_is_a_problem(apart_ms: int, took_ms: int, words: str | None) -> None:
    assert problems_of_broker(replace(STATUS, wall_ms=NOW + apart_ms), took_ms=took_ms) == ([] if words is None else [("clock", words)])


@pytest.mark.parametrize(
    ("free_mib", "words"),
    [
        (100, None),
        (99, "the disk is nearly full: 99 MiB free of 1000 MiB"),
        (50, "the disk is nearly full: 50 MiB free of 1000 MiB"),
        (49, "sends are refused: 49 MiB free of 1000 MiB, 50 MiB are reserved"),
    ],
)
def test_disk_needs_a_tenth_free_and_more_than_the_reserve(free_mib: int, words: str | None) -> None:
    assert problems_of_broker(replace(STATUS, disk_free_bytes=free_mib << 20)) == ([] if words is None else [("store writable", words)])


@pytest.mark.parametrize(
    ("standing", "remark", "found"),
    [
        ("accepted", "", []),
        ("unreachable", "", [("broker registered", "is unreachable")]),
        ("pending", "", [("broker registered", "is pending")]),
        ("refused", "the name is taken", [("unique broker name", "was refused: the name is taken")]),
    ],
)
def test_broker_must_be_accepted_by_each_nameserver(standing: str, remark: str, found: list[tuple[str, str]]) -> None:
    assert problems_of_broker(replace(STATUS, nameservers=(NameserverStanding("n1:9876", standing, remark),))) == found


@pytest.mark.parametrize(
    ("other", "two"),
    [
        (A, False),
        (replace(A, registered=False, address="10.0.0.2:10911"), False),
        (replace(A, address="10.0.0.2:10911"), True),
        (replace(A, term=8), True),
    ],
)
def test_nameservers_with_differing_entries_of_a_name_have_two_brokers(other: BrokerAddress, two: bool) -> None:
    found = problems(diagnosis.check_agreement({"n1:9876": (A,), "n2:9876": (other,)}))
    assert [check for check, _ in found] == (["unique broker name"] if two else [])
    if two:
        assert "n1:9876" in found[0][1]
        assert "n2:9876" in found[0][1]


def test_member_must_be_listed_equally_at_every_broker_of_its_topics() -> None:
    report = GroupReport("billing", True, False, (), (MEMBER,), ())
    assert problems(diagnosis.check_group(report)) == []
    missing = replace(report, members=(replace(MEMBER, missing_at=("broker-b", "broker-c")),))
    assert problems(diagnosis.check_group(missing)) == [("members complete", "is missing at broker-b, broker-c")]
    split = replace(report, conflicts=("broker-b and broker-a have different contracts: ordered",))
    assert problems(diagnosis.check_group(split)) == [("one contract", "broker-b and broker-a have different contracts: ordered")]
    assert "start them with the new ones" in diagnosis.check_group(split)[0].step
    uneven = replace(report, unequal_settings=("broker-b and broker-a have different settings",), settings=SETTINGS)
    assert problems(diagnosis.check_group(uneven)) == [("one contract", "broker-b and broker-a have different settings")]
    command = "`lockstep group update billing --subscription-policy classic --no-consume`"
    assert diagnosis.check_group(uneven)[0].step.startswith(f"run {command}: it gives every broker the settings")
    assert diagnosis.check_group(replace(report, members=())) == [], "a group without a member has nothing to be incomplete"


def test_damage_of_the_log_is_a_problem() -> None:
    found = problems_of_broker(replace(STATUS, damaged_messages=3, damaged_bytes=0))
    assert found == [("store whole", "damage of the log has destroyed 3 messages; 0 bytes are unreadable")]
    assert problems_of_broker(replace(STATUS, damaged_messages=0, damaged_bytes=7))[0][0] == "store whole"


def test_only_groups_with_members_or_settings_at_some_broker_are_checked() -> None:
    def summaries(**groups: tuple[int, bool]) -> GroupStatusReply:
        rows = [GroupSummary(name, None, None, members, 9, has_settings) for name, (members, has_settings) in groups.items()]
        return GroupStatusReply(tuple(groups), summaries=tuple(rows))

    a = summaries(idle=(0, False), joined=(1, False), changed=(0, False), lost=(0, False))
    b = summaries(idle=(0, False), joined=(0, False), changed=(0, True))
    assert diagnosis.groups_to_check({"a": a, "b": b}) == ["changed", "joined"]
