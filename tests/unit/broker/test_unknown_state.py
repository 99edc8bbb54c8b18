"""State that a later version has written is refused: a snapshot or a copy of this version would lose what it does not know."""

import copy
from collections.abc import Iterator
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]
import pytest

from lockstep.broker.groups.tables.activity_table import ActivityTable
from lockstep.broker.groups.tables.group_table import GroupTable
from lockstep.broker.groups.tables.lock_table import LockTable
from lockstep.broker.groups.tables.park_table import ParkTable
from lockstep.broker.groups.tables.progress_table import ProgressTable
from lockstep.broker.groups.tables.settings_table import SettingsTable
from lockstep.broker.offline.closed_state import closed_state
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.state import PURGED, REPLICAS, STORE, TERM, BrokerState
from lockstep.broker.store.health.check import Removals
from lockstep.broker.store.start.directory import StoreIdentity
from lockstep.broker.stored_form import UnknownFormError
from lockstep.broker.tables.delay_table import KIND as DELIVERED
from lockstep.broker.tables.sequence_table import Scope, StoredFrame
from lockstep.broker.tables.timer_table import ENDED, RECALLED
from lockstep.broker.tables.topic_table import FORGOTTEN
from lockstep.broker.tables.topic_table import KIND as LAYOUT
from lockstep.protocol.bodies import GroupSettings
from lockstep.protocol.fields import to_plain
from lockstep.protocol.messages.rooms import ABSOLUTE, DUE_SHIFT
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.protocol.names import TIMER_TOPIC
from support.coordination_kit import BROKER, GROUP, TOPIC, layout, ordered

IDENTITY = StoreIdentity("0", "c", BROKER, "ab" * 16, 1 << 20, 1_000, 0)
QUEUE = (GROUP, TOPIC, 0)
PARKED = (*QUEUE, "k", 3, "parked", 1, None, 5, None)
CHANGES: list[tuple[Any, ...]] = [
    (STORE, IDENTITY.store_id),
    (LAYOUT, to_plain(layout())),
    (LAYOUT, to_plain(layout("again", counter=4)), True),
    ("broker.term", 7),
    ("broker.grace", 3_000),
    ("broker.hold", True),
    ("broker.classic_hold", True),
    ("group.active", GROUP, 20_000),
    ("group.active", "other", 20_000),
    ("group.idle_limit", GROUP, 30),
    ("group.settings", to_plain(GroupSettings(GROUP))),
    ("group.contract", GROUP, to_plain(ordered())),
    ("group.member", GROUP, "a@1#0", "0" * 32, 0),
    ("progress.resolved", GROUP, TOPIC, 1, 5, [[0, 3], [1, 3]]),
    ("progress.set", *QUEUE, 6, 3, 0, 1, 2, True, [[7, 9]]),
    ("progress.committed", *QUEUE, 4, 1, [[7, 9]]),
    ("progress.renewed", 8),
    ("progress.reopened", TOPIC, [[0, 2]]),
    ("lock.granted", *QUEUE, 9, "0" * 32, "a@1#0"),
    ("lock.granted", GROUP, TOPIC, 1, 10, None, "c@1#0"),
    ("lock.superseded", *QUEUE, 11),
    ("park.set", *PARKED),
    (DELIVERED, 1, 4),
    (PURGED, TOPIC, [[0, 1]]),
    (TERM, 7, 100, False, 1),
    (REPLICAS, {"a": "10.0.0.1:10911"}),
    (RECALLED, 9_000 << DUE_SHIFT, 7),
]
"""Changes that leave something in every table."""
ENDS: list[tuple[Any, ...]] = [
    ("lock.freed", *QUEUE),
    ("lock.held", *QUEUE),
    ("lock.ended", *QUEUE, 12),
    ("lock.group_ended", GROUP, 12),
    ("lock.all_ended", 12),
    ("lock.topic_dropped", TOPIC),
    ("lock.forgotten", GROUP, TOPIC),
    ("park.removed", *QUEUE, "k"),
    ("park.cleared", *QUEUE),
    ("park.topic_dropped", TOPIC),
    ("progress.topic_dropped", TOPIC),
    ("progress.forgotten", GROUP, TOPIC),
    ("group.contract_ended", GROUP, 0),
    ("group.left", GROUP, "a@1#0"),
    ("group.settings_removed", GROUP),
    ("group.forgotten", GROUP),
    (FORGOTTEN, 3),
    (ENDED, 9_000 << DUE_SHIFT, 8),
]
KINDS = frozenset.union(*(table.KINDS for table in (ActivityTable, GroupTable, LockTable, ParkTable, ProgressTable, SettingsTable)))
NEXT = "start the version that wrote it, or a later one"


def empty() -> BrokerState:
    return closed_state(IDENTITY, Removals())


def replay(state: BrokerState, *changes: object) -> None:
    state.replay_state(msgpack.packb([1, changes]))


def full() -> BrokerState:
    """Return tables with something of everything."""
    state = empty()
    replay(state, *CHANGES)
    state.waits(TIMER_TOPIC, 8, [9_000 << DUE_SHIFT, 9_001 << DUE_SHIFT | ABSOLUTE], 0)
    state.waits(TIMER_TOPIC, 10, [90_000_000 << DUE_SHIFT], 0, first=2)
    state.sequences.record_frame(Scope("ab" * 16, 0, TOPIC, 0), FrameSequence("ab" * 16, 0, 1, 0, 2, True, 7), StoredFrame(0, 100, 5))
    return state


def plain_of(state: BrokerState) -> Any:
    """Return a snapshot of tables that have nothing to write."""
    cast(Any, state)._store.state_bytes_max = 1 << 20
    return as_read(state.take_snapshot())


def as_read(value: Any) -> Any:
    """Return a part of a snapshot as it is read from a file."""
    if isinstance(value, dict):
        return {name: as_read(each) for name, each in value.items()}
    return [as_read(each) for each in value] if isinstance(value, SnapshotRows | list | tuple) else value


def containers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each map and each list of a snapshot."""
    if isinstance(value, dict | list):
        yield path
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from containers(each, (*path, name))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


def test_every_kind_of_change_is_in_the_table() -> None:
    known = KINDS | {
        STORE,
        LAYOUT,
        FORGOTTEN,
        DELIVERED,
        PURGED,
        TERM,
        REPLICAS,
        RECALLED,
        ENDED,
        "broker.term",
        "broker.grace",
        "broker.hold",
        "broker.classic_hold",
    }
    assert {change[0] for change in CHANGES + ENDS} == known


def test_snapshot_of_this_version_is_restored_and_has_a_row_in_every_table() -> None:
    plain = plain_of(full())
    state = empty()
    state.replay_snapshot(copy.deepcopy(plain))
    assert plain_of(state) == plain
    assert [path for path in containers(plain) if at(plain, path) in ([], {})] == []


PLAIN = plain_of(full())
OPTIONAL = [("timers",), ("recalled_timers",), ("carried_timers",)]
"""Parts that the snapshot of a broker without such timers does not have."""
MAPS = [path for path in containers(PLAIN) if isinstance(at(PLAIN, path), dict) and path != ("replicas",)]
TABLES: list[tuple[str, ...]] = [("layouts",), ("sequences",), ("delays",), ("terms",), *OPTIONAL]
TABLES += [("coordination", name) for name in ("groups", "locks", "settings", "activity", "parks")]
TABLES += [("coordination", "progress", name) for name in ("queues", "since", "first")]
ROWS = [path for path in containers(PLAIN) if path[:-1] in TABLES and isinstance(at(PLAIN, path), list)]


def refused(plain: dict[str, Any]) -> str:
    with pytest.raises(UnknownFormError) as caught:
        empty().replay_snapshot(plain)
    assert str(caught.value).endswith(NEXT)
    return str(caught.value)


@pytest.mark.parametrize("path", MAPS, ids=str)
def test_snapshot_with_an_unknown_name_is_refused(path: tuple[Any, ...]) -> None:
    plain = copy.deepcopy(PLAIN)
    at(plain, path)["later"] = 1
    assert "later" in refused(plain)


@pytest.mark.parametrize("path", ROWS, ids=str)
def test_snapshot_with_a_longer_row_is_refused(path: tuple[Any, ...]) -> None:
    plain = copy.deepcopy(PLAIN)
    longest = max(map(len, at(PLAIN, path[:-1])))  # some rows leave out what they have not
    at(plain, path).extend(["later"] * (longest + 1 - len(at(plain, path))))
    refused(plain)


@pytest.mark.parametrize("name", sorted(PLAIN.keys() - {"terms", "replicas", *(name for (name,) in OPTIONAL)}))
def test_snapshot_without_a_part_is_refused(name: str) -> None:
    refused({part: each for part, each in PLAIN.items() if part != name})


@pytest.mark.parametrize("change", CHANGES + ENDS, ids=lambda change: change[0])
def test_change_with_another_value_is_refused_with_its_kind(change: tuple[Any, ...]) -> None:
    replay(full(), change)
    longer = (*change, "later")
    if change[0] == LAYOUT and len(change) == 2:
        longer = (*change, True, "later")
    with pytest.raises(UnknownFormError) as caught:
        replay(full(), longer)
    assert repr(change[0]) in str(caught.value)
    assert str(caught.value).endswith(NEXT)


@pytest.mark.parametrize("change", [("later.thing", 1), ("broker.later", 1), ("lock.later", 1), ("nothing",), ("broker.term", "x")])
def test_change_of_an_unknown_kind_is_refused_with_its_kind(change: tuple[object, ...]) -> None:
    with pytest.raises(UnknownFormError, match=f"does not know the state change '{change[0]}' of {len(change)} values: {NEXT}"):
        replay(full(), change)


@pytest.mark.parametrize("number", [1, 10, 11])
def test_change_with_an_unknown_name_in_a_map_is_refused(number: int) -> None:
    change = copy.deepcopy(CHANGES[number])
    next(each for each in change if isinstance(each, dict))["later"] = 1
    with pytest.raises(UnknownFormError, match=rf"does not know \w+\.later of the stored state: {NEXT}"):
        replay(empty(), change)
