"""SendResult derives its values from the result of its frame and its position in it."""

from lockstep.client.producer.result import FrameResult, SendResult, SendStatus
from lockstep.protocol.messages.ids import parse_offset_message_id
from lockstep.protocol.topics.queue import MessageQueue

QUEUE = MessageQueue("t", "a", 3)
IDS = [f"{place:032X}" for place in range(3)]


def test_offsets_and_ids_are_derived_from_the_first_record_of_the_frame() -> None:
    response = FrameResult(SendStatus.SEND_OK, QUEUE, 40, 1_000, "10.0.0.1:10911", [200, 150, 150], IDS)
    results = [SendResult(response, place) for place in range(3)]
    assert [result.message_id for result in results] == IDS
    assert [result.queue_offset for result in results] == [40, 41, 42]
    assert [parse_offset_message_id(result.offset_message_id) for result in results] == [
        ("10.0.0.1:10911", 1_000),
        ("10.0.0.1:10911", 1_200),
        ("10.0.0.1:10911", 1_350),
    ]
    assert results[0].queue == QUEUE
    assert results[0].status is SendStatus.SEND_OK
    assert "offset 41" in repr(results[1])


def test_duplicate_result_has_no_offset_and_no_offset_message_id() -> None:
    result = SendResult(FrameResult(SendStatus.SEND_OK, QUEUE, -1, -1, "", [10, 10], IDS), 1)
    assert result.queue_offset == -1
    assert result.offset_message_id == ""


def test_ipv6_store_host_yields_no_offset_message_id() -> None:
    assert SendResult(FrameResult(SendStatus.SEND_OK, QUEUE, 0, 0, "[::1]:10911", [10], IDS), 0).offset_message_id == ""


def test_send_results_are_compared_by_value() -> None:
    first, second = (FrameResult(SendStatus.SEND_OK, QUEUE, 40, 1_000, "", [1, 1], IDS) for _ in range(2))
    assert SendResult(first, 0) == SendResult(second, 0)
    assert SendResult(first, 0) != SendResult(second, 1)
    assert len({SendResult(first, 0), SendResult(second, 0)}) == 1
