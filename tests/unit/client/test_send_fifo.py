"""A FIFO of sends finds entries by deadline and by key without a scan."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.routing import UNKEYED, Route
from lockstep.client.producer.machines.send_fifo import AHEAD_OF_ALL, SendFifo
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import LayoutVersion
from support.counting import Steps

VERSIONS = [LayoutVersion(1, 1), LayoutVersion(2, 1)]


class OpaqueFuture:
    """A future that has no attributes, so that any access by the FIFO fails."""


def pending_send(deadline_ms: int = 100, key: str | None = None, version: LayoutVersion | None = None) -> PendingSend:
    future: Any = OpaqueFuture()
    pending = PendingSend((Message("t", b"r"),), UNKEYED if key is None else Route((key,)), 1, future, deadline_ms, deadline_ms)
    pending.version = version
    return pending


STEPS = st.one_of(
    st.tuples(st.sampled_from(["append", "push"]), st.integers(1, 20), st.sampled_from("abc")),
    st.tuples(st.sampled_from(["pop", "remove", "keys", "older"]), st.integers(0, 20), st.sampled_from("abc")),
    st.tuples(st.just("expire"), st.integers(0, 20), st.sampled_from("abc")),
)


@given(st.lists(STEPS, max_size=60))
def test_fifo_matches_a_list_model(steps: list[tuple[str, int, str]]) -> None:
    fifo, plain = SendFifo(), list[PendingSend]()

    def take(wanted: Callable[[PendingSend], bool]) -> list[PendingSend]:
        taken = [one for one in plain if wanted(one)]
        plain[:] = [one for one in plain if one not in taken]
        return taken

    for step, number, key in steps:
        match step:
            case "append":
                plain.append(pending_send(number, key, VERSIONS[number % 2]))
                fifo.append(plain[-1])
            case "push":
                plain.insert(0, pending_send(number, key, VERSIONS[number % 2]))
                fifo.push(plain[0])
            case "pop" if plain:
                assert fifo.pop() is plain.pop(0)
            case "remove" if plain:
                one = plain.pop(number % len(plain))
                assert fifo.remove(one)
                assert not fifo.remove(one)
            case "keys":
                assert fifo.take_keys({key: AHEAD_OF_ALL}) == take(lambda one: one.keys == (key,))  # noqa: B023
            case "older":
                assert fifo.take_older(VERSIONS[1]) == take(lambda one: one.version == VERSIONS[0])
            case "expire":
                assert fifo.take_expired(number, 99) == take(lambda one: one.deadline_ms <= number)  # noqa: B023
        assert list(fifo) == plain
        assert bool(fifo) is bool(plain)
        assert fifo.earliest_ms <= min([one.deadline_ms for one in plain], default=1 << 62)


def test_take_expired_returns_the_earliest_deadlines_up_to_the_limit() -> None:
    fifo = SendFifo()
    waiting = [pending_send(5), pending_send(3), pending_send(4), pending_send(9)]
    for one in waiting:
        fifo.append(one)
    assert fifo.take_expired(5, 2) == [waiting[1], waiting[2]]
    assert fifo.earliest_ms == 5
    assert fifo.take_expired(5, 2) == [waiting[0]]
    assert fifo.earliest_ms == 9


def test_deadline_heap_does_not_keep_removed_entries() -> None:
    fifo = SendFifo()
    fifo.append(pending_send(1))
    fifo.append(pending_send(1 << 40))
    assert len(fifo.take_expired(1, 9)) == 1
    for _ in range(5_000):
        fifo.append(pending_send(1 << 40, "k"))
        fifo.pop()
    assert fifo._deadlines is not None
    assert len(fifo._deadlines) < 200


def expire_one_by_one(fifo: SendFifo, count: int) -> None:
    for now_ms in range(1, count + 1):
        fifo.take_expired(now_ms, 256)


def withdraw_from_the_middle(fifo: SendFifo, count: int) -> None:
    waiting = list(fifo)
    for one in waiting[count // 2 :] + waiting[: count // 2]:
        fifo.remove(one)


def fail_key_by_key(fifo: SendFifo, count: int) -> None:
    for number in range(count):
        fifo.take_keys({str(number): AHEAD_OF_ALL})


@pytest.mark.parametrize("work", [expire_one_by_one, withdraw_from_the_middle, fail_key_by_key])
def test_cost_of_removing_an_entry_is_independent_of_lane_length(work: Callable[[SendFifo, int], None]) -> None:
    def steps(count: int) -> int:
        fifo = SendFifo()
        for number in range(count):
            fifo.append(pending_send(1 + number, str(number)))
        with Steps("/producer/machines/send_fifo.py") as spent:
            work(fifo, count)
        assert not fifo
        return spent.count

    assert steps(800) < 5 * steps(200)
