"""Two concurrent creators end with one layout.

Creation asks the brokers in order of their names and continues with the layout of the first one that has it.
"""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from lockstep.nameserver.broker_record import Registration
from lockstep.nameserver.route_table import RouteTable
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout

NAMES = ("broker-a", "broker-b", "broker-c")


def creator(brokers: dict[str, LayoutTable], seen: tuple[str, ...], writer: int) -> Iterator[None]:
    """Yield after each step of create_topic, one broker's response each; every broker keeps the higher of its own and the given layout."""
    mine = TopicLayout("orders", LayoutVersion(1, writer), tuple(LayoutEntry(name, writer % 4 + 1, writer % 4 + 1, 1) for name in seen))
    for name in sorted(seen):
        known = brokers[name].get("orders")
        if known is None:
            brokers[name].adopt(mine)
        else:
            mine = known
        yield


def registrar(name: str, brokers: dict[str, LayoutTable], table: RouteTable) -> Iterator[None]:
    """Register one broker repeatedly; others may run between response and adoption."""
    listeners = {"internal": f"{name}:10911"}
    while True:
        change = table.register(Registration(name, "c", name, 1, listeners, brokers[name].all(), name, 0), NAMES.index(name), 0)
        yield
        for layout in change.missing:
            brokers[name].adopt(layout)
        yield


def run(actors: list[Iterator[None]], order: list[int]) -> None:
    for choice in order:
        next(actors[choice % len(actors)], None)


WRITERS = st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=3, unique=True)
ORDER = st.lists(st.integers(0, 59), max_size=40)


@given(WRITERS, ORDER)
def test_creators_that_use_the_same_brokers_agree_without_a_nameserver(writers: list[int], order: list[int]) -> None:
    brokers = {name: LayoutTable() for name in NAMES}
    creators = [creator(brokers, NAMES, writer) for writer in writers]
    run(creators, order)
    for unfinished in creators:
        list(unfinished)
    assert len({brokers[name].get("orders") for name in NAMES}) == 1


@given(WRITERS, ORDER, st.lists(st.sets(st.sampled_from(NAMES), min_size=1), min_size=3, max_size=3))
def test_creators_that_use_different_brokers_agree_after_two_registrations(
    writers: list[int], order: list[int], views: list[set[str]]
) -> None:
    brokers, table = {name: LayoutTable() for name in NAMES}, RouteTable()
    creators = [creator(brokers, tuple(sorted(view)), writer) for writer, view in zip(writers, views, strict=False)]
    registrars = [registrar(name, brokers, table) for name in NAMES]
    run(creators + registrars, order)
    for unfinished in creators:
        list(unfinished)
    run(registrars, [0, 1, 2] * 5)
    final = table.layouts.get("orders")
    assert final is not None
    assert {brokers[name].get("orders") for name in NAMES} == {final}
    assert [broker.registered for broker in table.brokers("internal")] == [True, True, True]
