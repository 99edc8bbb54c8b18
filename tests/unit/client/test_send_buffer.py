"""Which sends may share a frame, and in which order they leave."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.producer.batch import Batch
from lockstep.client.producer.lane import AHEAD_OF_ALL
from lockstep.client.producer.pending import QUEUE_WIDE, PendingSend
from lockstep.client.producer.send_buffer import SendBuffer
from lockstep.protocol.queue import LayoutVersion

V1, V2 = LayoutVersion(1, 1), LayoutVersion(2, 1)


class Unlooked:
    """A future that a pure batcher must not look into."""


def parcel(
    name: str, *, key: str | None = None, version: LayoutVersion | None = None, count: int = 1, size: int = 10, deadline_ms: int = 100
) -> PendingSend:
    future: asyncio.Future[Any] = Unlooked()  # type: ignore[assignment]
    keys = () if key is None else (key,)
    return PendingSend(b"r" * count, [1] * count, [name] * count, size, future, deadline_ms, deadline_ms // 2, keys, version)


def batch_parcel(batch: Batch, places: list[int], keys: list[str], size: int = 10) -> PendingSend:
    """Record n has n + 1 bytes, all of them n."""
    records = [bytes([place]) * (place + 1) for place in places]
    sizes = [len(record) for record in records]
    ids = [str(place) for place in places]
    return PendingSend(b"".join(records), sizes, ids, size, batch, 100, 50, keys, V1, None, places)


def names(parcels: list[PendingSend]) -> list[str]:
    return [parcel.message_ids[0] for parcel in parcels]


def batcher(*parcels: PendingSend, bytes_max: int = 1_000, count_max: int = 100) -> SendBuffer:
    made = SendBuffer(bytes_max, count_max)
    for item in parcels:
        made.add(item)
    return made


def test_everything_of_one_lane_that_fits_goes_into_one_frame() -> None:
    full = batcher(parcel("a"), parcel("b"), parcel("c"))
    assert names(full.cut()) == ["a", "b", "c"]
    assert not full
    assert full.cut() == []


def test_a_frame_ends_at_its_byte_and_count_limits_exactly() -> None:
    assert names(batcher(parcel("a", size=40), parcel("b", size=60), parcel("c", size=1), bytes_max=100).cut()) == ["a", "b"]
    assert names(batcher(parcel("a", size=40), parcel("b", size=61), bytes_max=100).cut()) == ["a"]
    assert names(batcher(parcel("a", count=2), parcel("b", count=1), parcel("c"), count_max=3).cut()) == ["a", "b"]
    assert names(batcher(parcel("a", count=2), parcel("b", count=2), count_max=3).cut()) == ["a"]


def test_a_parcel_larger_than_a_frame_goes_alone() -> None:
    large = batcher(parcel("a", size=5_000, count=500), parcel("b"))
    assert names(large.cut()) == ["a"]
    assert names(large.cut()) == ["b"]


def test_keyed_and_unkeyed_sends_never_share_a_frame_and_take_turns() -> None:
    mixed = batcher(parcel("u1"), parcel("k1", key="1", version=V1), parcel("u2"), parcel("k2", key="2", version=V1), bytes_max=10)
    assert [names(mixed.cut()) for _ in range(4)] == [["u1"], ["k1"], ["u2"], ["k2"]]


def test_a_frame_holds_one_layout_version() -> None:
    lane = batcher(parcel("a", key="1", version=V1), parcel("b", key="2", version=V2), parcel("c", key=QUEUE_WIDE))
    assert [names(lane.cut()) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_equal_versions_share_a_frame_even_as_different_objects() -> None:
    lane = batcher(parcel("a", key="1", version=LayoutVersion(1, 1)), parcel("b", key="2", version=LayoutVersion(1, 1)))
    assert names(lane.cut()) == ["a", "b"]


def test_a_blocked_keyed_lane_lets_unkeyed_sends_pass() -> None:
    mixed = batcher(parcel("k", key="1", version=V1), parcel("u"))
    assert names(mixed.cut(keyed_blocked=True)) == ["u"]
    assert mixed.cut(keyed_blocked=True) == []
    assert names(mixed.cut()) == ["k"]


def test_a_refused_parcel_leaves_in_a_frame_of_its_own() -> None:
    lane = batcher(parcel("a"), parcel("b"), parcel("c"))
    taken = lane.cut()
    taken[1].alone = True
    lane.put_back(taken)
    assert [names(lane.cut()) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_put_back_restores_the_order_before_what_came_later() -> None:
    lane = batcher(parcel("a"), parcel("b"), bytes_max=20)
    taken = lane.cut()
    lane.add(parcel("c"))
    lane.put_back(taken)
    assert names(lane.cut()) == ["a", "b"]


def test_a_parcel_expires_at_its_deadline_and_not_before() -> None:
    lane = batcher(parcel("a", deadline_ms=100), parcel("k", key="1", deadline_ms=101), parcel("b", deadline_ms=99))
    assert lane.earliest_ms == 99
    assert lane.take_expired(98, 9) == []
    assert names(lane.take_expired(100, 9)) == ["a", "b"]
    assert lane.earliest_ms == 101
    assert names(lane.take_expired(101, 9)) == ["k"]
    assert not lane


def test_all_that_wait_with_a_failed_key_are_taken_and_no_others() -> None:
    lane = batcher(parcel("a", key="1"), parcel("b", key="2"), parcel("u"), parcel("c", key="1"), parcel("q", key=QUEUE_WIDE))
    assert names(lane.take_keys({"1": AHEAD_OF_ALL})) == ["a", "c"]
    assert names(lane.take_keys({QUEUE_WIDE: AHEAD_OF_ALL})) == ["q"]
    assert names(lane.cut()) == ["u"]
    assert names(lane.cut()) == ["b"]


async def test_of_a_parcel_of_several_keys_only_the_failed_ones_are_taken_each_by_itself_and_the_rest_keeps_its_place() -> None:
    batch = Batch(6, asyncio.get_running_loop().create_future())
    mixed = batch_parcel(batch, [0, 1, 2, 3, 4, 5], ["a", "b", "c", "a", "d", "b"])
    lane = batcher(parcel("before", key="z"), mixed, parcel("after", key="c"))
    taken = lane.take_keys(dict.fromkeys("ab", AHEAD_OF_ALL))
    assert [(one.message_ids, one.keys) for one in taken] == [(["0", "3"], ["a", "a"]), (["1", "5"], ["b", "b"])]
    assert [one.message_ids for one in lane.keyed] == [["before"], ["2", "4"], ["after"]]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), st.integers(0, 5_000))
def test_a_split_parcel_keeps_every_record_key_id_and_held_byte_and_each_part_answers_for_its_own(keys: list[str], size: int) -> None:
    async def split() -> None:
        batch = Batch(len(keys), asyncio.get_running_loop().create_future())
        whole = batch_parcel(batch, list(range(len(keys))), keys, size)
        whole.alone = True
        parts = whole.split(lambda key: key in "ab")
        assert (whole in parts.values()) is (len(parts) == 1)
        assert list(parts) == list(dict.fromkeys(key in "ab" for key in keys))
        assert sum(part.held_bytes for part in parts.values()) == size
        assert sum(part.count for part in parts.values()) == len(keys)
        for name, part in parts.items():
            places = [place for place, key in enumerate(keys) if (key in "ab") is name]
            assert part.data == b"".join(bytes([place]) * (place + 1) for place in places)
            assert part.sizes == [place + 1 for place in places]
            assert part.message_ids == [str(place) for place in places]
            assert part.keys == [keys[place] for place in places]
            assert (part.alone, part.version, part.deadline_ms, part.half_ms) == (True, V1, 100, 50)
            assert part in whole.leaves()
            assert part.places == places
            batch.stored(part.places, [f"result {place}" for place in places])  # type: ignore[misc]
        assert await batch.results() == [f"result {place}" for place in range(len(keys))]  # type: ignore[comparison-overlap]

    asyncio.run(split())


def test_only_what_was_picked_from_a_lower_layout_is_picked_again() -> None:
    lane = batcher(parcel("a", key="1", version=V1), parcel("b", key="2", version=V2), parcel("named", key=QUEUE_WIDE), parcel("u"))
    assert names(lane.take_older(V2)) == ["a"]


def test_withdrawing_takes_out_one_that_waits_and_says_so_of_one_that_does_not() -> None:
    first, second = parcel("a"), parcel("b")
    lane = batcher(first, second)
    assert lane.withdraw(first)
    assert not lane.withdraw(first)
    assert names(lane.cut()) == ["b"]
    assert not lane.withdraw(second)


@given(
    st.lists(st.tuples(st.sampled_from([None, "1", "2"]), st.integers(1, 40), st.integers(1, 4)), max_size=30),
    st.integers(1, 60),
    st.integers(1, 6),
)
def test_cutting_loses_nothing_repeats_nothing_and_keeps_each_lanes_order(
    items: list[tuple[str | None, int, int]], bytes_max: int, count_max: int
) -> None:
    made = [
        parcel(str(place), key=key, version=V1 if key else None, size=size, count=count) for place, (key, size, count) in enumerate(items)
    ]
    lane = batcher(*made, bytes_max=bytes_max, count_max=count_max)
    frames = []
    while frame := lane.cut():
        assert len({not item.keys for item in frame}) == 1
        assert len(frame) == 1 or sum(item.held_bytes for item in frame) <= bytes_max
        assert len(frame) == 1 or sum(item.count for item in frame) <= count_max
        frames += frame
    for keyed in (True, False):
        assert [item for item in frames if bool(item.keys) is keyed] == [item for item in made if bool(item.keys) is keyed]
