"""Rows become frames: each for the queue of its key, cut alike every time, and read back unchanged."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs the extra [spark]")

from lockstep.client.producer.machines.routing import queue_of_key  # noqa: E402
from lockstep.protocol.errors import LocalProtocolError  # noqa: E402
from lockstep.protocol.messages.message import decode_messages  # noqa: E402
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout  # noqa: E402
from lockstep.spark.columns import ARROW_TYPES  # noqa: E402
from lockstep.spark.frames import SPAN_MS, Frame, Frames, TopicFrames, check_columns  # noqa: E402

LAYOUT = TopicLayout("t", LayoutVersion(1, 1), (LayoutEntry("a", 2, 2, 1), LayoutEntry("b", 1, 1, 1)))


def made(
    layout: TopicLayout = LAYOUT, *, task: int = 0, records_max: int = 3, bytes_max: int = 1 << 20, scheduled: bool = False
) -> TopicFrames:
    return TopicFrames(layout, task, records_max=records_max, bytes_max=bytes_max, born_ms=5, scheduled=scheduled)


def table(*rows: dict[str, object]) -> object:
    names = list(rows[0])
    types = {
        "value": pa.binary(),
        "partition": pa.int32(),
        "bornTimestamp": ARROW_TYPES["bornTimestamp"],
        "headers": ARROW_TYPES["headers"],
    }
    arrays = [pa.array([row.get(name) for row in rows], types.get(name, pa.string())) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def cut(frames: TopicFrames, *batches: object) -> list[Frame]:
    def every() -> Iterator[Frame]:
        for batch in batches:
            yield from frames.add(batch)
        yield from frames.finish()

    return list(every())


def bodies(frame: Frame) -> list[bytes]:
    return [message.body for message in decode_messages(frame.records, frame.queue.broker_name)]


def test_row_with_a_key_goes_to_the_sdks_queue_of_that_key() -> None:
    keys = [f"order-{number}" for number in range(40)]
    for frame in cut(made(), table(*({"key": key, "value": key.encode()} for key in keys))):
        for message in decode_messages(frame.records, "x"):
            assert message.sharding_key is not None
            assert frame.queue == queue_of_key(LAYOUT, message.sharding_key)
            assert message.queue_id == frame.queue.queue_id


def test_partition_is_the_number_of_the_queue_in_the_layout() -> None:
    frames = cut(made(), table(*({"value": b"%d" % number, "partition": number} for number in (0, 1, 2))))
    assert {frame.queue: bodies(frame) for frame in frames} == {LAYOUT.write_queues[number]: [b"%d" % number] for number in (0, 1, 2)}


def test_rows_without_key_and_partition_go_round_the_queues_by_frame() -> None:
    rows = table(*({"value": b"%d" % number} for number in range(7)))
    frames = cut(made(task=4), rows)
    assert [(frame.queue, bodies(frame)) for frame in frames] == [
        (LAYOUT.write_queues[1], [b"0", b"1", b"2"]),
        (LAYOUT.write_queues[2], [b"3", b"4", b"5"]),
        (LAYOUT.write_queues[0], [b"6"]),
    ]


def test_frame_is_cut_by_count_and_bytes_and_a_larger_record_is_alone() -> None:
    rows = [{"value": b"x" * size, "partition": 0} for size in (1, 1, 1, 1, 700, 1)]
    assert [len(frame.sizes) for frame in cut(made(bytes_max=400), table(*rows))] == [3, 1, 1, 1]
    assert all(sum(frame.sizes) == len(frame.records) for frame in cut(made(), table(*rows)))


ROWS = st.lists(
    st.fixed_dictionaries(
        {"value": st.binary(min_size=1, max_size=80), "key": st.one_of(st.none(), st.text("abc\u00e9", min_size=1, max_size=3))}
    ),
    min_size=1,
    max_size=30,
)


@given(ROWS, st.integers(1, 7))
def test_frames_are_independent_of_the_batches_of_rows(rows: list[dict[str, object]], size: int) -> None:
    whole = cut(made(), table(*rows))
    parts = cut(made(), *(table(*rows[at : at + size]) for at in range(0, len(rows), size)))
    assert parts == whole


@given(ROWS)
def test_every_row_is_sent_once_and_in_order_within_its_key(rows: list[dict[str, object]]) -> None:
    sent = [(m.sharding_key, m.body) for frame in cut(made(), table(*rows)) for m in decode_messages(frame.records, "x")]
    by_key = lambda pairs: {key: [b for _, b in of] for key, of in groupby(sorted(pairs, key=lambda p: str(p[0])), lambda p: p[0])}  # noqa: E731
    assert by_key(sent) == by_key([(row["key"], row["value"]) for row in rows])


def test_tags_keys_headers_and_born_time_are_sent() -> None:
    row = {"value": b"x", "key": "k", "tags": "paid", "keys": "a  b", "headers": [{"key": "h", "value": b"v"}], "bornTimestamp": 1_234_567}
    (frame,) = cut(made(), table(row))
    (message,) = decode_messages(frame.records, "x")
    assert (message.sharding_key, message.tags, message.keys, message.born_ms) == ("k", "paid", ("a", "b"), 1_234)
    assert message.properties["h"] == "v"
    assert frame.due_ms == 1_234


def test_sliced_batch_sends_only_its_own_rows() -> None:
    batch = table(*({"value": b"%d" % number, "key": None if number % 2 else "k"} for number in range(6)))
    assert sorted(body for frame in cut(made(), batch.slice(2, 3)) for body in bodies(frame)) == [b"2", b"3", b"4"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("type_", ["string", "large_string", "large_binary", "binary"])
def test_text_and_large_columns_are_read_alike(type_: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["é", "x"]).cast(getattr(pa, type_)())], names=["value"])
    assert [body for frame in cut(made(), batch) for body in bodies(frame)] == ["é".encode(), b"x"]


def test_scheduled_frames_are_cut_by_the_times_of_the_rows() -> None:
    rows = [{"value": b"%d" % ms, "partition": 0, "bornTimestamp": ms * 1_000} for ms in (0, SPAN_MS, SPAN_MS + 1, SPAN_MS + 2)]
    frames = cut(made(scheduled=True, records_max=99), table(*rows))
    assert [(len(frame.sizes), frame.due_ms) for frame in frames] == [(2, SPAN_MS), (2, SPAN_MS + 2)]
    assert len(cut(made(records_max=99), table(*rows))) == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"value": None}, "value is null"),
        ({"value": b""}, "value is empty"),
        ({"value": b"x" * ((4 << 20) + 1)}, "at most 4194304"),
        ({"value": b"x", "partition": 3}, "partition is 3: topic t has 3 writable queues"),
        ({"value": b"x", "partition": -1}, "partition is -1"),
        ({"value": b"x", "partition": None}, "partition is null"),
        ({"value": b"x", "key": ""}, "key is empty"),
        ({"value": b"x", "key": "a\x01"}, "0x01"),
        ({"value": b"x", "tags": "a || b"}, "could not be subscribed to"),
        ({"value": b"x", "headers": [{"key": "TAGS", "value": b"v"}]}, "reserved"),
        ({"value": b"x", "key": "k" * 40_000}, "at most"),
        ({"value": b"x", "bornTimestamp": None}, "bornTimestamp is null"),
    ],
)
def test_row_that_cannot_be_sent_is_reported(row: dict[str, object], said: str) -> None:
    with pytest.raises(LocalProtocolError) as refused:
        cut(made(), table(row))
    assert said in str(refused.value)


def test_non_utf8_key_is_reported() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), pa.array([b"\xff"])], names=["value", "key"])
    with pytest.raises(LocalProtocolError, match="not UTF-8"):
        cut(made(), batch)


def test_rows_may_name_their_topics() -> None:
    other = TopicLayout("u", LayoutVersion(1, 1), (LayoutEntry("a", 1, 1, 1),))
    frames = Frames(None, partial(TopicFrames, task=0, records_max=3, bytes_max=999, born_ms=5, scheduled=False))
    batch = table(*({"value": b"%d" % number, "topic": "tu"[number % 2]} for number in range(4)))
    assert frames.missing(batch) == ["t", "u"]
    frames.open(LAYOUT)
    frames.open(other)
    assert frames.missing(batch) == []
    assert [frame.queue.topic for frame in (*frames.add(batch), *frames.finish())] == ["t", "u"]
    with pytest.raises(LocalProtocolError, match="topic is null"):
        frames.missing(table({"value": b"x", "topic": None}))


def test_columns_are_checked_before_anything_is_sent() -> None:
    check_columns({"value": "string", "key": "binary", "partition": "int"}, topic_given=True)
    for types, topic_given, said in (
        ({"value": "string", "vlaue": "string"}, True, 'did you mean "value"?'),
        ({"value": "int"}, True, "expected binary or string"),
        ({"key": "string"}, True, 'needs the column "value"'),
        ({"value": "string"}, False, "the topic is missing"),
    ):
        with pytest.raises(LocalProtocolError) as refused:
            check_columns(types, topic_given=topic_given)
        assert said in str(refused.value)
