"""The client programs count the warm-up apart from what they measure."""

import os

import pytest

from compare.clients.harness import CLOCK, Counter, Job, Stamps, bulk, in_batches, in_tasks, one, stamped

PIDS = (os.getpid(),)


def job(*, count: int = 100, warmup: int = 10) -> Job:
    return Job("tasks", "127.0.0.1:1", "topic", "group", count, warmup, 30, 1_000, PIDS, create=False, delete=False)


def test_counter_measures_from_the_end_of_the_warm_up_to_the_last_message() -> None:
    counter = Counter(job())
    assert not counter.count(9)
    assert not counter.count(5), "from here on messages are measured"
    assert not counter.count(95)
    assert counter.left == 1
    assert counter.count(1)
    assert counter.done.is_set()
    assert counter.result is not None
    assert counter.result.messages == 96
    assert counter.result.p50_us is None


def test_counter_measures_all_messages_if_they_come_at_once() -> None:
    counter = Counter(job())
    assert counter.count(110)
    assert counter.result is not None
    assert counter.result.messages == 110


def test_stamps_ignore_the_warm_up_and_end_with_the_last_message() -> None:
    stamps = Stamps(job(count=2))
    assert not stamps.saw(stamped(b"x" * 30, 0))
    assert not stamps.saw(stamped(b"x" * 30, CLOCK.monotonic_us() - 1_000_000))
    assert stamps.saw(stamped(b"x" * 30, CLOCK.monotonic_us() - 1_000_000))
    assert stamps.result is not None
    assert stamps.result.messages == 2
    assert stamps.result.p50_us is not None
    assert stamps.result.p50_us >= 1_000_000


def test_stamped_body_keeps_its_size() -> None:
    assert stamped(b"x" * 30, 12_345) == b"00000000000000012345" + b"x" * 10


@pytest.mark.parametrize("count", [1, 5, 12])
async def test_tasks_send_every_message_once(count: int) -> None:
    sent: list[int] = []

    async def send(index: int, body: bytes) -> None:
        assert body == b"body"
        sent.append(index)

    await in_tasks(send, b"body", tasks=5)(count)
    assert sorted(sent) == list(range(count))


@pytest.mark.parametrize("count", [1, 10, 25])
async def test_batches_contain_every_message_once(count: int) -> None:
    sent: list[int] = []

    async def send_batch(first: int, end: int) -> None:
        assert end - first <= 10
        sent.extend(range(first, end))

    await in_batches(send_batch, size=10, in_flight=2)(count)
    assert sorted(sent) == list(range(count))


async def test_bulk_and_one_measure_only_what_follows_the_warm_up() -> None:
    runs: list[int] = []

    async def run(count: int) -> None:
        runs.append(count)

    async def send(index: int, body: bytes) -> None:
        runs.append(len(body))

    figure = await bulk(run)(job())
    assert (runs, figure and figure.messages) == ([10, 100], 100)
    runs.clear()
    figure = await one(send)(job(count=3, warmup=2))
    assert figure is not None
    assert (runs, figure.messages) == ([30] * 5, 3)
    assert figure.p99_us is not None
