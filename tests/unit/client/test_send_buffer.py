"""Which sends may share a frame, and in which order they leave."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.producer.batch import Batch
from lockstep.client.producer.machines.pending import PendingSend, held_bytes_of
from lockstep.client.producer.machines.routing import QUEUE_WIDE, UNKEYED, Route
from lockstep.client.producer.machines.send_buffer import SendBuffer
from lockstep.client.producer.machines.send_fifo import AHEAD_OF_ALL
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import LayoutVersion

V1, V2 = LayoutVersion(1, 1), LayoutVersion(2, 1)


class OpaqueFuture:
    """A future that has no attributes, so that any access by the buffer fails."""


def pending_send(
    name: str, *, key: str | None = None, version: LayoutVersion | None = None, count: int = 1, size: int = 10, deadline_ms: int = 100
) -> PendingSend:
    future: asyncio.Future[Any] = OpaqueFuture()  # type: ignore[assignment]
    route = UNKEYED if key is None else Route((key,))
    pending = PendingSend([Message("t", name.encode())] * count, route, size, future, 0, deadline_ms)
    pending.version = version
    return pending


def pending_part(batch: Batch, places: list[int], keys: list[str], size: int = 10) -> PendingSend:
    """Return a pending part of `batch`. The body of message n is n."""
    messages = [Message("t", str(place).encode()) for place in places]
    pending = PendingSend(messages, Route(keys), size, batch, 0, 100, places=places)
    pending.version = V1
    return pending


def bodies(pending: PendingSend) -> list[str]:
    return [message.body.decode() for message in pending.messages]


def names(sends: list[PendingSend]) -> list[str]:
    return [bodies(each)[0] for each in sends]


def buffer_of(*sends: PendingSend, bytes_max: int = 1_000, count_max: int = 100) -> SendBuffer:
    made = SendBuffer(bytes_max, count_max)
    for item in sends:
        made.fifo_of(item).append(item)
    return made


def test_all_sends_of_a_lane_that_fit_leave_in_one_frame() -> None:
    full = buffer_of(pending_send("a"), pending_send("b"), pending_send("c"))
    assert names(full.cut()) == ["a", "b", "c"]
    assert not full
    assert full.cut() == []


def test_frame_is_cut_exactly_at_its_byte_and_count_limits() -> None:
    assert names(buffer_of(pending_send("a", size=40), pending_send("b", size=60), pending_send("c", size=1), bytes_max=100).cut()) == [
        "a",
        "b",
    ]
    assert names(buffer_of(pending_send("a", size=40), pending_send("b", size=61), bytes_max=100).cut()) == ["a"]
    assert names(buffer_of(pending_send("a", count=2), pending_send("b", count=1), pending_send("c"), count_max=3).cut()) == ["a", "b"]
    assert names(buffer_of(pending_send("a", count=2), pending_send("b", count=2), count_max=3).cut()) == ["a"]


def test_send_larger_than_a_frame_leaves_alone() -> None:
    large = buffer_of(pending_send("a", size=5_000, count=500), pending_send("b"))
    assert names(large.cut()) == ["a"]
    assert names(large.cut()) == ["b"]


def test_keyed_and_unkeyed_sends_never_share_a_frame_and_alternate() -> None:
    mixed = buffer_of(
        pending_send("u1"),
        pending_send("k1", key="1", version=V1),
        pending_send("u2"),
        pending_send("k2", key="2", version=V1),
        bytes_max=10,
    )
    assert [names(mixed.cut()) for _ in range(4)] == [["u1"], ["k1"], ["u2"], ["k2"]]


def test_frame_has_one_layout_version() -> None:
    buffer = buffer_of(pending_send("a", key="1", version=V1), pending_send("b", key="2", version=V2), pending_send("c", key=QUEUE_WIDE))
    assert [names(buffer.cut()) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_equal_layout_versions_share_a_frame() -> None:
    buffer = buffer_of(pending_send("a", key="1", version=LayoutVersion(1, 1)), pending_send("b", key="2", version=LayoutVersion(1, 1)))
    assert names(buffer.cut()) == ["a", "b"]


def test_blocked_keyed_lane_does_not_block_unkeyed_sends() -> None:
    mixed = buffer_of(pending_send("k", key="1", version=V1), pending_send("u"))
    assert names(mixed.cut(keyed_blocked=True)) == ["u"]
    assert mixed.cut(keyed_blocked=True) == []
    assert names(mixed.cut()) == ["k"]


def test_refused_send_leaves_in_its_own_frame() -> None:
    buffer = buffer_of(pending_send("a"), pending_send("b"), pending_send("c"))
    taken = buffer.cut()
    taken[1].alone = True
    buffer.put_back(taken)
    assert [names(buffer.cut()) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_put_back_restores_the_order_before_later_sends() -> None:
    buffer = buffer_of(pending_send("a"), pending_send("b"), bytes_max=20)
    taken = buffer.cut()
    buffer.unkeyed.append(pending_send("c"))
    buffer.put_back(taken)
    assert names(buffer.cut()) == ["a", "b"]


def test_send_expires_at_its_deadline_and_not_earlier() -> None:
    buffer = buffer_of(pending_send("a", deadline_ms=100), pending_send("k", key="1", deadline_ms=101), pending_send("b", deadline_ms=99))
    assert buffer.earliest_ms == 99
    assert buffer.take_expired(98, 9) == []
    assert names(buffer.take_expired(100, 9)) == ["a", "b"]
    assert buffer.earliest_ms == 101
    assert names(buffer.take_expired(101, 9)) == ["k"]
    assert not buffer


def test_take_keys_removes_exactly_the_sends_of_failed_keys() -> None:
    buffer = buffer_of(
        pending_send("a", key="1"),
        pending_send("b", key="2"),
        pending_send("u"),
        pending_send("c", key="1"),
        pending_send("q", key=QUEUE_WIDE),
    )
    assert names(buffer.keyed.take_keys({"1": AHEAD_OF_ALL})) == ["a", "c"]
    assert names(buffer.keyed.take_keys({QUEUE_WIDE: AHEAD_OF_ALL})) == ["q"]
    assert names(buffer.cut()) == ["u"]
    assert names(buffer.cut()) == ["b"]


async def test_take_keys_splits_a_send_of_several_keys_and_the_rest_keeps_its_position() -> None:
    batch = Batch(6, asyncio.get_running_loop().create_future())
    mixed = pending_part(batch, [0, 1, 2, 3, 4, 5], ["a", "b", "c", "a", "d", "b"])
    buffer = buffer_of(pending_send("before", key="z"), mixed, pending_send("after", key="c"))
    taken = buffer.keyed.take_keys(dict.fromkeys("ab", AHEAD_OF_ALL))
    assert [(bodies(one), one.keys) for one in taken] == [(["0", "3"], ["a", "a"]), (["1", "5"], ["b", "b"])]
    assert [bodies(one) for one in buffer.keyed] == [["before"], ["2", "4"], ["after"]]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_split_send_keeps_all_messages_keys_ids_and_bytes_and_each_part_completes_its_own(keys: list[str]) -> None:
    async def split() -> None:
        batch = Batch(len(keys), asyncio.get_running_loop().create_future())
        whole = pending_part(batch, list(range(len(keys))), keys)
        whole.held_bytes = size = sum(map(held_bytes_of, whole.messages))
        whole.message_ids = [f"id {place}" for place in range(len(keys))]
        whole.alone = True
        parts = whole.split(lambda key: key in "ab")
        assert (whole in parts.values()) is (len(parts) == 1)
        assert list(parts) == list(dict.fromkeys(key in "ab" for key in keys))
        assert sum(part.held_bytes for part in parts.values()) == size
        assert sum(part.count for part in parts.values()) == len(keys)
        for name, part in parts.items():
            places = [place for place, key in enumerate(keys) if (key in "ab") is name]
            assert bodies(part) == [str(place) for place in places]
            assert part.message_ids == [f"id {place}" for place in places]
            assert part.keys == [keys[place] for place in places]
            assert (part.alone, part.version, part.deadline_ms, part.half_ms) == (True, V1, 100, 50)
            assert part in whole.leaves()
            assert part.places == places
            batch.stored(part.places, [f"result {place}" for place in places])  # type: ignore[misc]
        assert await batch.results() == [f"result {place}" for place in range(len(keys))]  # type: ignore[comparison-overlap]

    asyncio.run(split())


def test_take_older_removes_only_sends_of_a_lower_layout() -> None:
    buffer = buffer_of(
        pending_send("a", key="1", version=V1),
        pending_send("b", key="2", version=V2),
        pending_send("named", key=QUEUE_WIDE),
        pending_send("u"),
    )
    assert names(buffer.keyed.take_older(V2)) == ["a"]


def test_withdraw_removes_a_pending_send_and_returns_whether_it_was_pending() -> None:
    first, second = pending_send("a"), pending_send("b")
    buffer = buffer_of(first, second)
    assert buffer.unkeyed.remove(first)
    assert not buffer.unkeyed.remove(first)
    assert names(buffer.cut()) == ["b"]
    assert not buffer.unkeyed.remove(second)


@given(
    st.lists(st.tuples(st.sampled_from([None, "1", "2"]), st.integers(1, 40), st.integers(1, 4)), max_size=30),
    st.integers(1, 60),
    st.integers(1, 6),
)
def test_cut_loses_and_repeats_no_send_and_keeps_the_order_of_each_lane(
    items: list[tuple[str | None, int, int]], bytes_max: int, count_max: int
) -> None:
    made = [
        pending_send(str(place), key=key, version=V1 if key else None, size=size, count=count)
        for place, (key, size, count) in enumerate(items)
    ]
    buffer = buffer_of(*made, bytes_max=bytes_max, count_max=count_max)
    frames = []
    while frame := buffer.cut():
        assert len({not item.keys for item in frame}) == 1
        assert len(frame) == 1 or sum(item.held_bytes for item in frame) <= bytes_max
        assert len(frame) == 1 or sum(item.count for item in frame) <= count_max
        frames += frame
    for keyed in (True, False):
        assert [item for item in frames if bool(item.keys) is keyed] == [item for item in made if bool(item.keys) is keyed]
