"""From facts to the cause that explains why a queue does not move: the order of the causes, and what each says."""

from dataclasses import replace

import pytest

from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.explain.why import (
    Cause,
    Explanation,
    Facts,
    QueueState,
    asked_member,
    explain,
    has_progress,
    key_explanation,
    state_of,
)
from lockstep.operations.explain.why_query import Diagnosis
from lockstep.operations.explain.why_text import diagnosis_lines
from lockstep.operations.groups.group_report import QueueLine, report
from lockstep.protocol.bodies import (
    ConsumerGroup,
    GroupSettings,
    GroupStatus,
    JoinRefusal,
    ListVersion,
    MemberStatus,
    ParkedKey,
    ParkState,
    QueueStatus,
    RunningCall,
    RunningInfo,
    RunningQueue,
    Subscription,
)
from lockstep.protocol.topics.queue import MessageQueue

GROUP, TOPIC, BROKER = "billing", "orders", "broker-a"
QUEUE = MessageQueue(TOPIC, BROKER, 0)
CONTRACT = ConsumerGroup(GROUP, (Subscription(TOPIC),), ordered=True)
A, B = MemberStatus("a", "01234567", "10.0.0.1:1", True, 100), MemberStatus("b", "89abcdef", "10.0.0.2:1", True, 100)
HELD = QueueStatus(TOPIC, 0, "a", 7, 1, 5, 25, 0, 9_000, None, parked=0, disk_pulls=0, listed_owner="a")
FREE = replace(HELD, owner=None)
STATUS = GroupStatus(GROUP, ListVersion(1, 1), CONTRACT, (A, B), (HELD,), grants=1)
AT_A = RunningQueue(TOPIC, 0, "held", 5, 5, 10, False)
INFO = RunningInfo("a", GROUP, "running", False, "shop.bill", 0, None, 2_000, AT_A)
CALL = RunningCall(61_000, 5, 1, 0, "k1", ("app/shop.py:7 in bill",))
RUNS = replace(INFO, calls=1, oldest=CALL, oldest_queue=str(QUEUE))


def explained(status: GroupStatus, /, **facts: object) -> Explanation:
    made = report(GROUP, {BROKER: status}, [QUEUE])
    (line,) = made.queues
    return explain(made, replace(Facts(line, before=line), **facts))  # type: ignore[arg-type]


def found_line(queue: QueueStatus) -> QueueLine:
    return report(GROUP, {BROKER: with_queue(queue)}, [QUEUE]).queues[0]


def with_queue(queue: QueueStatus) -> GroupStatus:
    return replace(STATUS, queues=(queue,))


def at_the_member(**changes: object) -> RunningInfo:
    return replace(INFO, queue=replace(AT_A, **changes))  # type: ignore[arg-type]


GRACE = replace(A, connected=False, grace_left_ms=1_500)
REFUSAL = JoinRefusal("c", 4_000, "group billing has another contract")
PULLS = {"fetched": 0, "pulling": True, "pulled_ms": 9_000, "pull_offset": 5}
BACKOFF = at_the_member(again_ms=4_000, attempts=2)

CAUSES = {
    "consumption off": ("consumption_disabled", replace(STATUS, settings=GroupSettings(GROUP, consume_enable=False)), {"info": RUNS}),
    "nobody": ("no_member", replace(STATUS, members=(), queues=(FREE,)), {}),
    "nobody but a refused one": ("member_refused", replace(STATUS, members=(), queues=(FREE,), refusals=(REFUSAL,)), {}),
    "suspended": ("grants_suspended", replace(STATUS, queues=(FREE,), suspended_ms=2_000), {}),
    "suspended, but held again": ("listener_runs", replace(STATUS, suspended_ms=2_000), {"info": RUNS}),
    "classic owner": ("classic_owner", with_queue(replace(HELD, owner="java", classic_lease_left_ms=900)), {}),
    "owner in its grace": ("owner_in_grace", replace(with_queue(replace(HELD, owner_grace_ms=1_500)), members=(GRACE, B)), {}),
    "owner has left": ("owner_left", replace(with_queue(replace(HELD, listed_owner="b")), members=(B,)), {}),
    "listed member in its grace": ("listed_in_grace", replace(with_queue(FREE), members=(GRACE, B)), {}),
    "draining": ("draining", with_queue(replace(HELD, listed_owner="b")), {"info": at_the_member(state="draining", drain_ms=8_000)}),
    "silent": ("member_silent", STATUS, {"silent": True}),
    "paused": ("paused", STATUS, {"info": replace(RUNS, paused=True)}),
    "not wanted": ("not_wanted", with_queue(FREE), {"info": replace(INFO, queue=None)}),
    "not acquired": ("not_acquired", with_queue(FREE), {"info": at_the_member(state="wanted", fetched=0)}),
    "blocked": ("blocked", STATUS, {"info": at_the_member(blocked=True)}),
    "blocked key": ("key_blocked", STATUS, {"info": replace(RUNS, queue=replace(AT_A, blocked_keys=(None, "k2")))}),
    "call": ("listener_runs", STATUS, {"info": RUNS}),
    "calls elsewhere": ("all_calls_busy", STATUS, {"info": replace(RUNS, oldest_queue="bills@broker-a:0", calls=4, concurrency=4)}),
    "backoff": ("backoff", with_queue(replace(HELD, attempts=2, failing_ms=9_000, error="E: x")), {"info": BACKOFF}),
    "backoff of a key": ("backoff", STATUS, {"info": BACKOFF}),
    "no commit": ("uncommitted", STATUS, {"info": at_the_member(uncommitted=3)}),
    "no second poll": ("polled", STATUS, {"info": at_the_member(uncommitted=3, polled_ms=70_000)}),
    "span": ("span_full", STATUS, {"info": at_the_member(keys=3, full=True, oldest_key="k1")}),
    "span of a queue": ("span_full", STATUS, {"info": at_the_member(full=True)}),
    "loop blocked between calls": ("loop_blocked", STATUS, {"info": replace(INFO, loop_blocked_ms=2_500)}),
    "loop blocked by short calls": (
        "loop_blocked",
        STATUS,
        {"info": replace(RUNS, oldest=replace(CALL, ran_ms=40), loop_blocked_ms=2_500)},
    ),
    "loop blocked before a hung call": ("listener_runs", STATUS, {"info": replace(RUNS, loop_blocked_ms=2_500)}),
    "loop blocked, and backoff": ("backoff", STATUS, {"info": replace(BACKOFF, loop_blocked_ms=2_500)}),
    "disk": ("pull_waits_for_disk", with_queue(replace(HELD, disk_pulls=1)), {"info": at_the_member(**PULLS)}),
    "no answer": ("pull_unanswered", STATUS, {"info": at_the_member(**PULLS)}),
    "no pull for a while": ("not_pulling", STATUS, {"info": at_the_member(**PULLS | {"pulling": False})}),
    "no pull yet": ("not_pulling", STATUS, {"info": at_the_member(**PULLS | {"pulling": False, "pulled_ms": None})}),
    "not proven": ("not_proven", STATUS, {"info": replace(INFO, proof_left_ms=0)}),
    "not asked, and failing": ("failing", with_queue(replace(HELD, attempts=2, failing_ms=9_000, error="E: x")), {"no_info": "old"}),
    "not asked": ("member_not_asked", STATUS, {"no_info": "request code 307 is not supported"}),
}


@pytest.mark.parametrize(("name", "status", "facts"), CAUSES.values(), ids=CAUSES)
def test_each_situation_has_its_cause(name: str, status: GroupStatus, facts: dict[str, object]) -> None:
    found = explained(status, **facts)
    assert (found.state, found.explained) == (QueueState.STALLED, True)
    assert found.because is not None
    assert found.because.name == name
    assert not found.because.text.endswith(".")
    assert found.summary == f"{QUEUE} of group {GROUP} is stalled at offset 5: 20 messages wait; the last commit was 9.0 s ago"


def test_queue_of_a_topic_that_the_group_has_left_is_neither_stalled_nor_idle() -> None:
    left = replace(with_queue(replace(FREE, listed_owner=None)), consumed=("bills",))
    found = explained(left)
    assert (found.state, found.explained) == (QueueState.LEFT, True)
    assert list(diagnosis_lines(GROUP, Diagnosis((found,), {QUEUE: found.state}))) == [
        "orders@broker-a:0 of group billing is not consumed any more: the 20 messages after offset 5 don't count as its lag",
        "  because  no contract in force of group billing subscribes to orders: the group has left that topic",
        "  next     subscribe to orders in its consumers, or end its progress there with `lockstep group forget billing --topic orders`",
    ]


def test_queue_is_not_explained_without_a_fact() -> None:
    found = explained(STATUS, info=INFO)
    assert (found.state, found.because, found.explained) == (QueueState.STALLED, None, False)
    assert [each.text for each in found.also] == ["the queue is held under epoch 7 by a, from which something was received 0.1 s ago"]
    assert found.facts == Facts(found_line(HELD), found_line(HELD), info=INFO)
    printed = "\n".join(diagnosis_lines(GROUP, Diagnosis((found,), {QUEUE: found.state})))
    for words in (
        "fact     broker: topic orders, broker broker-a, queue_id 0, reached True, owner a, epoch 7, committed_offset 5, max_offset 25, ",
        "committed_ago 9.0 s, attempts 0, generation 1, parked 0, listed_owner a, disk_pulls 0, left False\n",
        "fact     the looks: between 0.0 s, granted 0, silent False\n",
        "fact     member: client_id a, group billing, state running, paused False, listener shop.bill, calls 0, proof_left 2.0 s\n",
        "fact     its queue: topic orders, queue_id 0, state held, offset 5, committed_offset 5, fetched 10, full False, ",
    ):
        assert words in printed
    assert "fact" not in "\n".join(diagnosis_lines(GROUP, Diagnosis((explained(STATUS, info=RUNS),), {QUEUE: found.state})))


@pytest.mark.parametrize(
    "changes", [{"pulled_ms": 999}, {"fetched": 1}, {"state": "draining"}, {"pulling": None}], ids=lambda each: next(iter(each))
)
def test_member_that_pulls_has_messages_or_does_not_report_its_pulls_is_not_blamed_for_them(changes: dict[str, object]) -> None:
    assert explained(STATUS, info=at_the_member(**PULLS | changes)).because is None


def test_pull_is_told_with_its_offset_and_its_age() -> None:
    def told(**changes: object) -> str:
        because = explained(STATUS, info=at_the_member(**PULLS | changes)).because
        assert because is not None
        return because.text

    assert told() == "a holds the queue and has no response to its pull from offset 5, sent to broker-a 9.0 s ago"
    assert told(pulling=False) == "a holds the queue and does not pull: its last pull was from offset 5, sent to broker-a 9.0 s ago"


def test_paused_member_does_not_pull_and_is_not_blamed_for_that() -> None:
    found = explained(STATUS, info=replace(at_the_member(**PULLS | {"pulling": False}), paused=True))
    assert found.because is not None
    assert [found.because.name, *(each.name for each in found.also)] == ["paused", "held"]


def test_further_causes_follow_the_first() -> None:
    found = explained(with_queue(replace(HELD, listed_owner="b")), info=replace(RUNS, paused=True))
    assert found.because is not None
    assert [found.because.name, *(each.name for each in found.also)] == ["draining", "paused", "listener_runs", "held"]


def test_member_that_is_not_connected_to_this_broker_is_missing() -> None:
    other = MessageQueue(TOPIC, "broker-b", 0)
    statuses = {
        BROKER: replace(STATUS, members=(A,)),
        "broker-b": replace(STATUS, members=(B,), queues=(replace(FREE, listed_owner=None),)),
    }
    made = report(GROUP, statuses, [QUEUE, other])
    (line,) = [line for line in made.queues if line.broker == "broker-b"]
    made = replace(made, members=tuple(member for member in made.members if member.client_id == "a"))
    found = explain(made, Facts(line))
    assert found.because is not None
    assert (found.because.name, found.because.text) == ("member_missing", "a is connected to other brokers, but not to broker broker-b")


def test_broker_that_was_not_reached_is_the_cause() -> None:
    made = report(GROUP, {}, [QUEUE], [BROKER])
    found = explain(made, Facts(made.queues[0]))
    assert (found.state, found.summary) == (QueueState.UNKNOWN, f"{QUEUE} of group {GROUP} is not known")
    assert found.because is not None
    assert found.because.name == "broker_unreached"
    found = explain(made, Facts(made.queues[0], unserved=Finding("master", BROKER, "has no master: its register is down", "start it")))
    assert found.because == Cause("broker_unserved", f"broker {BROKER} has no master: its register is down", "start it")


def test_call_of_an_earlier_grant_has_no_offset() -> None:
    found = explained(with_queue(FREE), info=replace(RUNS, oldest=replace(CALL, offset=-1, key=None), queue=replace(AT_A, state="wanted")))
    assert found.because is not None
    assert found.because.text == "the listener shop.bill has been running for 61 s under an earlier grant in a, at app/shop.py:7 in bill"
    assert found.because.step == "look at app/shop.py:7 in bill"


def test_listener_is_where_its_own_code_is_and_not_the_library_that_it_calls() -> None:
    stack = ("app/shop.py:3 in main", "app/shop.py:7 in bill", "httpx/client.py:90 in send", "lib/ssl.py:1 in read")
    called = replace(CALL, stack=stack, own_frame=stack[1])
    found = explained(STATUS, info=replace(RUNS, oldest=called)).because
    assert found is not None
    assert found.text.endswith(" in a, at app/shop.py:7 in bill (now in lib/ssl.py:1 in read)")
    assert (found.step, found.stack) == ("look at app/shop.py:7 in bill", stack)
    busy = replace(RUNS, oldest=called, oldest_queue="bills@broker-a:0", calls=4, concurrency=4)
    found = explained(STATUS, info=busy).because
    assert found is not None
    assert found.text.endswith("on bills@broker-a:0, for 61 s, at app/shop.py:7 in bill (now in lib/ssl.py:1 in read)")
    found = explained(STATUS, info=replace(RUNS, oldest=replace(called, own_frame=None))).because
    assert found is not None
    assert (found.text.rpartition(", ")[2], found.step) == ("at lib/ssl.py:1 in read", "look at lib/ssl.py:1 in read")
    found = explained(STATUS, info=replace(RUNS, oldest=replace(CALL, stack=()))).because
    assert found is not None
    assert (found.text.endswith(" in a"), found.step) == (True, "look at what the listener waits for")


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (HELD, HELD, QueueState.STALLED),
        (HELD, replace(HELD, committed_offset=6), QueueState.PROGRESSING),
        (HELD, replace(HELD, done=(7, 9)), QueueState.PROGRESSING),
        (HELD, replace(HELD, max_offset=26), QueueState.STALLED),
        (HELD, replace(HELD, committed_offset=25), QueueState.IDLE),
        (replace(HELD, committed_offset=6), HELD, QueueState.STALLED),
    ],
)
def test_queue_moves_if_more_is_finished_than_before(before: QueueStatus, after: QueueStatus, state: QueueState) -> None:
    assert state_of(found_line(after), found_line(before)) is state


def test_queue_whose_earlier_progress_is_not_known_does_not_move() -> None:
    """A look that did not reach the broker is no offset of 0."""
    found = explained(STATUS, before=None, info=RUNS)
    assert found.state is QueueState.STALLED
    words = "20 messages wait; the last commit was 9.0 s ago; its offset a second earlier is not known"
    assert found.summary == f"{QUEUE} of group {GROUP} is at offset 5: {words}"
    found = explained(with_queue(replace(HELD, committed_offset=-1, committed_ago_ms=None)), before=None, info=RUNS)
    assert found.summary == f"{QUEUE} of group {GROUP} has no offset yet: 25 messages wait"
    unreached = report(GROUP, {}, [QUEUE], [BROKER]).queues[0]
    assert [has_progress(line) for line in (found_line(HELD), found_line(replace(HELD, committed_offset=-1)), unreached)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("arrived", "words"),
    [(0, "20 messages wait, which are consumed in 2.0 s at this rate"), (10, "30 messages wait, and as many or more arrive")],
)
def test_moving_queue_says_when_it_will_be_done(arrived: int, words: str) -> None:
    before = found_line(replace(HELD, committed_offset=5, max_offset=35))
    after = with_queue(replace(HELD, committed_offset=15, max_offset=35 + arrived))
    found = explained(after, before=before, between_ms=1_000)
    assert found.summary == f"{QUEUE} of group {GROUP} is being consumed: 10 messages/s during the examination; {words}"
    assert (found.because, found.explained) == (None, True)


def test_messages_that_no_subscription_matches_do_not_wait() -> None:
    """A pull passes over them, and the next commit, too. If the member has fetched some, these are not among them."""
    passed = with_queue(replace(HELD, held_offset=25))
    assert explained(passed, info=at_the_member(fetched=0)).state is QueueState.IDLE
    assert explained(passed, info=at_the_member(fetched=1)).state is QueueState.STALLED
    assert explained(passed, info=at_the_member(fetched=0, uncommitted=1)).state is QueueState.STALLED
    assert explained(with_queue(replace(HELD, held_offset=24)), info=at_the_member(fetched=0)).state is QueueState.STALLED
    assert explained(passed).state is QueueState.STALLED, "its member was not asked"


def test_remarks_are_made_whether_the_queue_moves_or_not() -> None:
    row = ParkedKey(GROUP, TOPIC, 0, "k9", 3, ParkState.PARKED, 4, "E: x", 0)
    idle = replace(with_queue(replace(HELD, committed_offset=25)), refusals=(REFUSAL,))
    found = explained(idle, parked=(row,) * 9, granted=3, between_ms=1_000, disk_refusal="the disk is full")
    assert [each.name for each in found.also] == ["parked", "not_settled", "member_refused", "sends_refused"]
    assert found.also[0].text == "parked keys, whose messages wait: k9, k9, k9, k9, k9, k9, k9, k9 and 1 more"
    assert not explained(idle, granted=2, between_ms=1_000).also[1:]
    assert "sends_refused" not in [each.name for each in explained(STATUS, disk_refusal="the disk is full").also]


def test_lost_messages_are_told_for_a_day() -> None:
    def told(**gap: int) -> list[str]:
        return [each.text for each in explained(with_queue(replace(HELD, **gap))).also if each.name == "messages_lost"]  # type: ignore[arg-type]

    words = "before the group had consumed them all"
    assert told() == []
    assert told(gap_first=1, gap_end=1_001, gap_ago_ms=61_000) == [f"retention or a purge removed offsets 1 to 1,000 61 s ago, {words}"]
    assert told(gap_first=1, gap_end=4) == [f"retention or a purge removed offsets 1 to 3 at a time that is not known, {words}"]
    assert told(gap_first=1, gap_end=4, gap_ago_ms=24 * 3_600_000 + 1) == []


def test_refusal_of_a_client_that_is_a_member_by_now_is_not_told() -> None:
    found = explained(replace(STATUS, refusals=(replace(REFUSAL, client_id="a"),)))
    assert "member_refused" not in [each.name for each in found.also]


def test_member_that_can_answer_is_asked() -> None:
    def asked(queue: QueueStatus, *members: MemberStatus) -> str | None:
        made = report(GROUP, {BROKER: replace(with_queue(queue), members=members)}, [QUEUE])
        return asked_member(made, made.queues[0])

    assert asked(HELD, A, B) == "a"
    assert asked(replace(HELD, listed_owner="b"), A, B) == "a"
    assert asked(replace(FREE, listed_owner="b"), A, B) == "b"
    assert asked(replace(HELD, owner_grace_ms=1_000), GRACE, B) is None
    assert asked(replace(HELD, owner="gone", listed_owner="b"), A, B) == "b"
    assert asked(HELD, replace(A, session=None), B) is None, "a client of RocketMQ has no such report"


def test_parked_key_is_explained_by_its_row() -> None:
    row = ParkedKey(GROUP, TOPIC, 0, "k 9", 3, ParkState.PARKED, 4, "ValueError: no such account", 0)
    found = key_explanation(GROUP, QUEUE, [row])
    assert found is not None
    assert found.summary == f"{QUEUE} of group {GROUP}: key k 9 is parked at offset 3"
    assert found.because is not None
    assert found.because.text == "its message failed 4 times: ValueError: no such account"
    assert found.because.step == "remove the cause, then run `lockstep park replay billing 'k 9'`"
    assert key_explanation(GROUP, QUEUE, [replace(row, state=ParkState.ENDED)]) is None
    assert key_explanation(GROUP, QUEUE, []) is None
