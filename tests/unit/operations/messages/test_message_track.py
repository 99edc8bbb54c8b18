"""Each track type follows from a broker's status of a group, and from copies of the message. RocketMQ: messageTrackDetail."""

from dataclasses import replace

import pytest

from lockstep.operations.messages.message_track import MEANINGS, Track, TrackType, concerns, track, track_json, track_text
from lockstep.operations.messages.waiting import home_queue, home_topic, waiting_of
from lockstep.protocol.bodies import SQL92, ConsumerGroup, ConsumeType, GroupStatus, MessageModel, Subscription
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue
from support.tracked import CONTRACT, STORED_MS, copy_in, message, status, waiting

ACTIVE = replace(CONTRACT, consume_type=ConsumeType.CONSUME_ACTIVELY)
BROADCASTING = replace(CONTRACT, message_model=MessageModel.BROADCASTING)
DUE_MS = STORED_MS + 30_000


def subscribed(expression: str, kind: str = "TAG") -> ConsumerGroup:
    return replace(CONTRACT, subscriptions=(Subscription("u", "other"), Subscription("t", expression, expression_type=kind)))


@pytest.mark.parametrize(
    ("given", "of", "type_"),
    [
        (status(-1), message(), TrackType.NOT_CONSUME_YET),
        (status(6), message(), TrackType.NOT_CONSUME_YET),
        (status(7), message(), TrackType.NOT_CONSUME_YET),
        (status(8), message(), TrackType.CONSUMED),
        (status(8, subscribed("*")), message(None), TrackType.CONSUMED),
        (status(8, subscribed("tagA")), message("tagA"), TrackType.CONSUMED),
        (status(8, subscribed("tagA")), message("tagB"), TrackType.CONSUMED_BUT_FILTERED),
        (status(8, subscribed("tagA", "")), message("tagB"), TrackType.CONSUMED_BUT_FILTERED),
        (status(8, subscribed("tagA")), message(None), TrackType.CONSUMED_BUT_FILTERED),
        (status(7, subscribed("tagA")), message("tagB"), TrackType.NOT_CONSUME_YET),
        (status(8, None), message(), TrackType.CONSUMED),
        (status(8, ACTIVE), message(), TrackType.PULL),
        (status(8, BROADCASTING), message(), TrackType.CONSUME_BROADCASTING),
        (status(8, subscribed("amount > 100", SQL92)), message(amount="100"), TrackType.CONSUMED_BUT_FILTERED),
        (status(8, subscribed("amount > 100", SQL92)), message(), TrackType.CONSUMED_BUT_FILTERED),
        (status(8, subscribed("amount > 100", SQL92)), message(amount="101"), TrackType.CONSUMED),
        (status(8, subscribed("TAGS = 'tagB'", SQL92)), message("tagB"), TrackType.CONSUMED),
        (status(7, subscribed("amount > 100", SQL92)), message(), TrackType.NOT_CONSUME_YET),
        (status(8, subscribed("amount >< 100", SQL92)), message(), TrackType.CONSUMED),
        (status(8, subscribed("amount", "of a later version")), message(), TrackType.CONSUMED),
    ],
)
def test_track_follows_from_kind_position_and_subscription(given: GroupStatus, of: MessageExt, type_: TrackType) -> None:
    committed = given.queues[2].committed_offset
    assert track(given, of) == Track("g", type_, None if committed < 0 else committed, online=True)


@pytest.mark.parametrize(("committed", "type_"), [(-1, TrackType.NOT_ONLINE), (7, TrackType.NOT_CONSUME_YET), (8, TrackType.CONSUMED)])
def test_what_is_known_of_a_group_without_members_goes_first(committed: int, type_: TrackType) -> None:
    found = track(status(committed, None, ()), message())
    assert (found.type, found.online) == (type_, False)
    text = track_text(found, STORED_MS)
    beside = "" if type_ is TrackType.NOT_ONLINE else "; no member of the group is connected"
    assert text == MEANINGS[type_] + beside


@pytest.mark.parametrize("contract", [CONTRACT, ACTIVE, subscribed("tagA"), None])
@pytest.mark.parametrize("online", [True, False])
def test_parked_keys_and_copies_are_known_whatever_the_kind_of_the_group(contract: ConsumerGroup | None, online: bool) -> None:
    given = status(8, contract, status().members if online else (), retries=5)
    letter, due, finished = copy_in("%DLQ%g"), copy_in("%RETRY%g", 5), copy_in("%RETRY%g", 4)
    assert track(given, message(), parked=True).type is TrackType.PARKED
    assert track(given, message(), parked=True, copy=letter).type is TrackType.PARKED
    assert track(given, message(), copy=letter).type is TrackType.DEAD_LETTERED
    assert track(given, message(), copy=due).type is TrackType.RETRYING
    assert track(given, message(), copy=waiting("%RETRY%g", 0)).type is TrackType.RETRYING
    assert track(given, message(), copy=finished) == track(given, message())
    assert track(given, message(), copy=due).online is online


def test_retry_is_shown_with_its_number_its_time_and_the_last_error() -> None:
    copy = waiting("%RETRY%g", 0, failures=3, __LS_REASON="ValueError: no such account")
    found = track(status(8), message(), copy=copy)
    assert found == Track("g", TrackType.RETRYING, 8, online=True, failures=3, due_ms=DUE_MS, error="ValueError: no such account")
    about = f"{MEANINGS[TrackType.RETRYING]}: retry 3 is due"
    error = "; the last error: ValueError: no such account"
    assert track_text(found, STORED_MS + 2_000) == f"{about} in 28 s (2023-11-14T22:13:50.000Z){error}"
    assert track_text(found, DUE_MS) == f"{about} since 2023-11-14T22:13:50.000Z{error}"
    assert track_text(replace(found, due_ms=None, error=None), 0) == about
    assert track_json(found, STORED_MS) == {
        "group": "g",
        "track": "RETRYING",
        "committed_offset": 8,
        "online": True,
        "failures": 3,
        "due_at": "2023-11-14T22:13:50.000Z",
        "error": "ValueError: no such account",
        "meaning": track_text(found, STORED_MS),
    }


@pytest.mark.parametrize(("failures", "words"), [(0, ""), (1, ", after one failed call"), (16, ", after 16 failed calls")])
def test_dead_letter_is_shown_with_its_failed_calls(failures: int, words: str) -> None:
    found = track(status(8), message(), copy=copy_in("%DLQ%g", failures=failures))
    assert track_text(found, 0) == MEANINGS[TrackType.DEAD_LETTERED] + words


@pytest.mark.parametrize("contract", [CONTRACT, ACTIVE, BROADCASTING, None])
def test_message_that_waits_for_its_delay_is_delayed_for_every_group(contract: ConsumerGroup | None) -> None:
    found = track(status(200, contract), waiting("t"))
    assert found == Track("g", TrackType.DELAYED, 200, online=True, due_ms=DUE_MS)
    assert track_text(found, STORED_MS).endswith(": it is due in 30 s (2023-11-14T22:13:50.000Z)")


def test_retry_that_waits_belongs_to_its_group_alone() -> None:
    retry = waiting("%RETRY%g", 0, failures=2, RETRY_TOPIC="t")
    found = track(status(8), retry)
    assert (found.type, found.failures, found.due_ms) == (TrackType.RETRYING, 2, DUE_MS)
    assert concerns(status(8), retry)
    assert not concerns(status(8, group="h"), retry)


def test_groups_are_concerned_by_their_subscription_or_their_progress() -> None:
    assert concerns(status(-1), message())
    assert concerns(status(1, None), message())
    assert not concerns(status(-1, None), message())
    assert concerns(status(-1, None), waiting("t")), "it has progress in another queue of the topic"
    assert not concerns(status(-1, None), waiting("v"))


def test_message_that_was_finished_before_an_earlier_one_is_consumed() -> None:
    given = status(3)
    above = replace(given, queues=(*given.queues[:2], replace(given.queues[2], done=(5, 8))))
    assert [track(above, message(offset=offset)).type for offset in (2, 4, 5, 7, 8)] == [
        TrackType.CONSUMED,
        TrackType.NOT_CONSUME_YET,
        TrackType.CONSUMED,
        TrackType.CONSUMED,
        TrackType.NOT_CONSUME_YET,
    ]


def test_each_track_type_has_a_meaning() -> None:
    assert MEANINGS.keys() == set(TrackType)


def test_message_that_waits_has_the_queue_to_which_it_goes_and_a_time() -> None:
    assert waiting_of(message()) is None
    assert (home_queue(message()), home_topic(message())) == (MessageQueue("t", "a", 2), "t")
    retry = waiting("%RETRY%g", 0, delay_ms=10_000, RETRY_TOPIC="t")
    assert (home_queue(retry), home_topic(retry)) == (MessageQueue("%RETRY%g", "a", 0), "t")
    found = waiting_of(waiting("t", 3, delay_ms=1_234))
    assert found is not None
    assert (found.queue, found.due_ms) == (MessageQueue("t", "a", 3), STORED_MS + 1_234)


@pytest.mark.parametrize("number", ["", "x", "-1", "²", "9" * 40])
def test_damaged_number_of_a_queue_is_taken_for_the_first(number: str) -> None:
    assert home_queue(waiting("t", REAL_QID=number)) == MessageQueue("t", "a", 0)
