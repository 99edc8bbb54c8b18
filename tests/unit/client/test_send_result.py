"""A result knows its own place in the response to its frame."""

from lockstep.client.producer.result import FrameResult, SendResult, SendStatus
from lockstep.protocol.ids import parse_offset_message_id
from lockstep.protocol.queue import MessageQueue

QUEUE = MessageQueue("t", "a", 3)


def test_offsets_and_ids_follow_from_the_frames_first_record() -> None:
    answer = FrameResult(SendStatus.SEND_OK, QUEUE, 40, 1_000, "10.0.0.1:10911", [200, 150, 150])
    results = [SendResult(answer, place, f"{place:032X}") for place in range(3)]
    assert [result.queue_offset for result in results] == [40, 41, 42]
    assert [parse_offset_message_id(result.offset_message_id) for result in results] == [
        ("10.0.0.1:10911", 1_000),
        ("10.0.0.1:10911", 1_200),
        ("10.0.0.1:10911", 1_350),
    ]
    assert results[0].queue == QUEUE
    assert results[0].status is SendStatus.SEND_OK
    assert "offset 41" in repr(results[1])


def test_a_late_repeat_is_stored_somewhere_and_nobody_knows_where() -> None:
    result = SendResult(FrameResult(SendStatus.SEND_OK, QUEUE, -1, -1, "", [10, 10]), 1, "A" * 32)
    assert result.queue_offset == -1
    assert result.offset_message_id == ""


def test_a_store_host_that_no_id_can_hold_gives_no_id() -> None:
    assert SendResult(FrameResult(SendStatus.SEND_OK, QUEUE, 0, 0, "[::1]:10911", [10]), 0, "A" * 32).offset_message_id == ""


def test_results_are_equal_by_what_they_say() -> None:
    first, second = (FrameResult(SendStatus.SEND_OK, QUEUE, 40, 1_000, "", [1]) for _ in range(2))
    assert SendResult(first, 0, "A" * 32) == SendResult(second, 0, "A" * 32)
    assert SendResult(first, 0, "A" * 32) != SendResult(second, 0, "B" * 32)
    assert len({SendResult(first, 0, "A" * 32), SendResult(second, 0, "A" * 32)}) == 1
