"""Reads with a predicate: what passes is returned as it is stored, and a read ends after a limit of what it has examined."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.store import ReadResult, ReadStatus, Store
from lockstep.broker.store.queues.predicates import EXAMINED_BYTES_MAX, Keep, select, stored_properties
from lockstep.broker.store.queues.reader import SCAN_ENTRY_COUNT_MIN
from lockstep.protocol.tags import tags_code
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import append, bodies_of, confirmed, open_store, record

A = tags_code("A")


def has(*names: bytes) -> Keep:
    return lambda properties, _: any(b"\x02K\x01" + name in properties.split(b"\x03") for name in names)


async def store_with(keys: Iterable[bytes], *, body_bytes: int = 10, memory: bool = True, **settings: int) -> Store:
    files = SimFiles()
    store = await open_store(files, **settings)
    for number, key in enumerate(keys):
        append(store, b"%d" % number + b"." * body_bytes, properties=b"K\x01" + key)
    await confirmed(store)
    if memory:
        return store
    await store.write_snapshot([])
    await store.close()
    return await open_store(files, **settings)


async def read(
    store: Store, keep: Keep, offset: int = 0, *, max_count: int = 32, max_bytes: int = 1 << 20, tags: frozenset[int] | None = None
) -> ReadResult:
    page = {"max_count": max_count, "max_bytes": max_bytes}
    result = store.read("orders", 0, offset, **page, tag_hashes=tags, keep=keep)  # type: ignore[arg-type]
    return result or await store.read_cold("orders", 0, offset, **page, tag_hashes=tags, keep=keep)  # type: ignore[arg-type]


def numbers(result: ReadResult) -> list[int]:
    return [int(body.rstrip(b".")) for body in bodies_of(result.parts)]


@pytest.mark.parametrize("memory", [True, False])
async def test_messages_that_pass_are_returned_in_order_and_adjacent_ones_as_one_part(memory: bool) -> None:
    store = await store_with([b"x", b"x", b"y", b"x", b"y", b"y", b"x"], memory=memory)
    result = await read(store, has(b"x"))
    assert (numbers(result), len(result.parts), result.next_offset) == ([0, 1, 3, 6], 3, 7)
    assert (result.examined_count, result.examined_bytes) == (7, 7 * len(record(b"0" + b"." * 10, properties=b"K\x01x")))
    assert result.body_bytes == sum(map(len, result.parts))
    none = await read(store, has(b"z"))
    assert (none.status, none.next_offset, none.parts, none.examined_count) == (ReadStatus.NO_MATCHED, 7, [], 7)
    await store.close()


@pytest.mark.parametrize("memory", [True, False])
async def test_page_ends_before_the_first_message_that_does_not_fit(memory: bool) -> None:
    store = await store_with([b"x", b"y", b"x", b"y", b"x"], memory=memory)
    size = len(record(b"0" + b"." * 10, properties=b"K\x01x"))
    assert [(numbers(one), one.next_offset) for one in [await read(store, has(b"x"), max_count=2)]] == [([0, 2], 4)]
    by_bytes = await read(store, has(b"x"), max_bytes=2 * size)
    assert (numbers(by_bytes), by_bytes.next_offset) == ([0, 2], 4)
    first = await read(store, has(b"x"), max_bytes=1)
    assert (numbers(first), first.next_offset) == ([0], 2)
    await store.close()


async def test_read_examines_as_many_entries_as_a_read_by_tags() -> None:
    store = await store_with([b"x" if number in (0, 950) else b"y" for number in range(1_000)])
    first = await read(store, has(b"x"))
    assert (numbers(first), first.next_offset, first.examined_count) == ([0], SCAN_ENTRY_COUNT_MIN, SCAN_ENTRY_COUNT_MIN)
    assert numbers(await read(store, has(b"x"), SCAN_ENTRY_COUNT_MIN)) == [950]
    await store.close()


async def test_read_examines_a_limited_number_of_bytes() -> None:
    store = await store_with([b"y"] * 5, body_bytes=EXAMINED_BYTES_MAX // 3, segment_bytes=8 << 20)
    first = await read(store, has(b"x"))
    assert (first.status, first.next_offset, first.examined_count) == (ReadStatus.NO_MATCHED, 2, 2)
    large = await store_with([b"y", b"x"], body_bytes=2 * EXAMINED_BYTES_MAX, segment_bytes=8 << 20)
    assert (await read(large, has(b"x"))).next_offset == 1, "the first record is always examined"
    await store.close()
    await large.close()


async def test_only_records_with_a_wanted_tag_are_examined() -> None:
    store = await open_store(SimFiles())
    for number in range(6):
        append(store, b"%d" % number, properties=(b"TAGS\x01A" if number % 2 else b"TAGS\x01B") + b"\x02K\x01x")
    await confirmed(store)
    examined: list[bytes] = []

    def note(properties: bytes, _: int) -> bool:
        examined.append(properties)
        return len(examined) > 1

    result = await read(store, note, tags=frozenset({A}))
    assert (numbers(result), result.next_offset) == ([3, 5], 6)
    assert examined == [b"\x02TAGS\x01A\x02K\x01x"] * 3
    await store.close()


@given(
    records=st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=20),
    max_count=st.integers(1, 12),
    max_bytes=st.integers(1, 1_500),
)
def test_select_equals_a_plain_loop(records: list[tuple[int, bool, bool]], max_count: int, max_bytes: int) -> None:
    """`records`: (bytes of the body, whether it passes, whether a new part begins with it)."""
    parts: list[bytes] = []
    rows = [record(b"." * size, properties=b"yes" if passes else b"no") for size, passes, _ in records]
    for row, (_, _, begins) in zip(rows, records, strict=True):
        if begins or not parts:
            parts.append(row)
        else:
            parts[-1] += row
    expected: list[bytes] = []
    examined = 0
    for row, (_, passes, _) in zip(rows, records, strict=True):
        if passes and expected and (len(expected) == max_count or sum(map(len, expected)) + len(row) > max_bytes):
            break
        examined += 1
        if passes:
            expected.append(row)
    found = select(parts, list(map(len, rows)), lambda properties, _: properties == b"\x02yes", max_count, max_bytes)
    assert (b"".join(found.parts), found.count, found.examined) == (b"".join(expected), len(expected), examined)
    assert found.examined_bytes == sum(map(len, rows[:examined]))


@given(st.binary(min_size=88, max_size=140), st.integers(0, 140))
def test_properties_of_unchecked_bytes_are_inside_the_record(data: bytes, end: int) -> None:
    found = stored_properties(data, 0, min(end, len(data)))
    assert found[:1] == b"\x02"
    assert found[1:] in data[: min(end, len(data))]
