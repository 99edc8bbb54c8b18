"""PARK, PARK_END and PARK_CONTROL: what they change, what they refuse, and what becomes of parked keys with their group and their queue."""

from typing import Any

import pytest

from lockstep.broker.classic.resets import ResetProcessor
from lockstep.broker.groups.parking import LISTED_BYTES_MAX
from lockstep.protocol.bodies import (
    LockVerdict,
    ParkAction,
    ParkControlBody,
    ParkedKey,
    ParkState,
    QueueOffset,
    ReplayKey,
    ResetBody,
    SyncBody,
    SyncItem,
)
from lockstep.protocol.bodies.parks import KEY_BYTES_MAX, LISTED_MAX, REPLAYS_MAX
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.errors import LocalProtocolError, ParkRefusedError
from lockstep.protocol.headers.park import ParkEndHeader, ParkEndReply, ParkHeader
from lockstep.protocol.headers.tools import CloneOffsetHeader, ResetOffsetHeader
from lockstep.protocol.messages.properties import REASON_LENGTH_MAX
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from lockstep.runtime.security.authenticated_user import ANYBODY
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, joined, layout, ordered

S, A = ParkState, ParkAction
KEY = (GROUP, TOPIC, 0)
PARKS = "3 attempts, pause 1000 ms x2 up to 30000 ms, then park"
BLOCKS = "3 attempts, pause 1000 ms x2 up to 30000 ms, then block"


def holding(retry: str = PARKS, queues: tuple[int, ...] = (0,)) -> tuple[Bench, Client]:
    """Return a broker and a member that holds queues, whose offsets are 0 … 999."""
    bench = Bench()
    member = joined(bench, "a", ordered(retry=retry))
    member.lock(*queues)
    bench.drain(object)  # type: ignore[type-var]
    return bench, member


def park(bench: Bench, key: str | bytes | None = "k", offset: int = 10, queue_id: int = 0, *, reason: str = "poisoned") -> None:
    header = ParkHeader(GROUP, TOPIC, queue_id, 0, offset, 3, reason)
    bench.c.parking.park(header, key.encode() if isinstance(key, str) else key, 5_000)


def end(bench: Bench, offset: int, pulled: int | None = None, key: str = "k") -> ParkEndReply:
    return bench.c.parking.commit_replay(ParkEndHeader(GROUP, TOPIC, 0, 0, key, offset, pulled))


def control(
    bench: Bench, action: ParkAction, group: str | None = GROUP, topic: str | None = None, key: str | None = None
) -> list[ParkedKey]:
    return list(bench.c.parking.control(ParkControlBody(action, group, topic, key)).keys)


def rows(bench: Bench, queue: tuple[str, str, int] = KEY) -> list[tuple[str, ParkState, int]]:
    return [(row.key, row.state, row.next) for row in bench.c.state.parks.rows(queue)]


def commit(member: Client, offset: int, *done: int) -> None:
    item = SyncItem(*KEY, member.held[0], None, offset, done=done)
    reply = member.bench.c.lock_sync.sync(member.connection, SyncBody((item,)), member.bench.now_ms)
    assert reply is not None
    assert reply.items[0].verdict is LockVerdict.OK


# ------------------------------------------------------------------------------------------------------------------------ PARK


def test_parked_key_says_where_why_and_when() -> None:
    bench, _ = holding()
    park(bench, reason="a\nb" + "x" * 300)
    (row,) = control(bench, A.LIST)
    assert row == ParkedKey(GROUP, TOPIC, 0, "k", 10, S.PARKED, 3, ("a b" + "x" * 300)[:REASON_LENGTH_MAX], 5_000)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "the message at offset 10 of orders queue 0 has no sharding key: nothing says which later messages have to wait for it"),
        (b"\xff", "the sharding key of the message at offset 10 of orders queue 0 is not UTF-8"),
        ("k" * 1_025, "has 1025 bytes: at most 1024 can be parked"),
    ],
)
def test_message_whose_key_cannot_be_parked_is_refused(key: str | bytes | None, words: str) -> None:
    bench, _ = holding()
    with pytest.raises(ParkRefusedError, match=words):
        park(bench, key)
    assert not bench.c.parking.any_parked
    assert not control(bench, A.LIST)


def test_only_the_session_that_holds_the_queue_under_this_epoch_parks_and_replays() -> None:
    bench, member = holding()
    epoch, accepts = member.held[0], bench.c.state.accepts_epoch
    assert accepts(member.connection, KEY, epoch)
    other = joined(bench, "b", ordered(retry=PARKS))
    assert not accepts(other.connection, KEY, epoch)
    assert not accepts(member.connection, KEY, epoch + 1)
    assert not accepts(member.connection, (GROUP, TOPIC, 1), epoch)
    assert not accepts(99, KEY, epoch)
    member.lock(0, held={})
    assert not accepts(member.connection, KEY, epoch), "it has been granted again"


# ------------------------------------------------------------------------------------------------------------------- PARK_END


@pytest.mark.parametrize(
    ("offset", "pulled", "right"),
    [(0, None, True), (1_000, None, True), (1_001, None, False), (-1, None, False), (5, 1_000, True), (5, 1_001, False), (5, -1, False)],
)
def test_progress_of_a_replay_is_within_the_queue(offset: int, pulled: int | None, right: bool) -> None:
    bench, _ = holding()
    park(bench)
    control(bench, A.REPLAY)
    if right:
        end(bench, offset, pulled)
        return
    with pytest.raises(LocalProtocolError, match=f"replay of orders queue 0: next {offset}, pulled {pulled}: the queue ends at 1000"):
        end(bench, offset, pulled)
    assert rows(bench) == [("k", S.REPLAYING, 10)]


def test_commit_without_an_end_goes_on() -> None:
    bench, _ = holding()
    park(bench)
    control(bench, A.REPLAY)
    assert end(bench, 40) == ParkEndReply()
    assert rows(bench) == [("k", S.REPLAYING, 40)]


@pytest.mark.parametrize("known_by", ["pulled", "passed", "progress", "done range"])
@pytest.mark.parametrize(("reached", "reply"), [(59, ParkEndReply(until=60)), (60, ParkEndReply(upto=60)), (61, ParkEndReply(upto=61))])
def test_replay_ends_where_nothing_has_passed_its_key_for_good(known_by: str, reached: int, reply: ParkEndReply) -> None:
    bench, member = holding()
    park(bench)
    control(bench, A.REPLAY)
    if known_by == "passed":
        bench.c.parking.note_passed(KEY, bench.c.parking.filter(KEY), 60)
    elif known_by == "progress":
        commit(member, 60)
    elif known_by == "done range":
        commit(member, 5, 20, 30, 40, 60)
    assert end(bench, reached, 60 if known_by == "pulled" else 0) == reply
    assert end(bench, reached, 60 if known_by == "pulled" else 0) == reply, "a repeated request has the same response"


def test_row_goes_when_progress_has_passed_its_end() -> None:
    bench, member = holding()
    park(bench)
    control(bench, A.REPLAY)
    end(bench, 60, 60)
    for offset, stays in ((59, True), (60, False)):
        commit(member, offset)
        assert (bench.c.parking.filter(KEY) is not None) is stays
        assert bench.c.parking.any_parked is stays


def test_group_without_progress_hides_what_is_parked() -> None:
    bench = Bench()
    park(bench)
    assert bench.c.parking.least_end(KEY) == 0
    assert bench.c.parking.filter(KEY) is not None
    assert bench.c.parking.filter((GROUP, TOPIC, 1)) is None


# ---------------------------------------------------------------------------------------------------------------- PARK_CONTROL


def parked_in_many_places() -> Bench:
    """Return a broker with keys of two groups in two topics, and one that has ended."""
    bench = Bench(layout(), layout("refunds"))
    for group, topic, queue_id, key in (
        (GROUP, TOPIC, 0, "a"),
        (GROUP, TOPIC, 0, "b"),
        (GROUP, TOPIC, 1, "a"),
        (GROUP, "refunds", 0, "a"),
        ("shipping", TOPIC, 0, "a"),
        (GROUP, TOPIC, 0, "ended"),
    ):
        bench.c.state.parks.park((group, topic, queue_id), key, 10, 3, "poisoned", 0)
    bench.c.parking.control(ParkControlBody(A.REPLAY, GROUP, None, "ended"))
    end(bench, 10, 0, "ended")
    return bench


def names(found: list[ParkedKey]) -> list[str]:
    return [f"{row.group} {row.topic} {row.queue_id} {row.key}" for row in found]


@pytest.mark.parametrize(
    ("group", "topic", "key", "expected"),
    [
        (
            None,
            None,
            None,
            ["billing orders 0 a", "billing orders 0 b", "billing orders 1 a", "billing refunds 0 a", "shipping orders 0 a"],
        ),
        (None, TOPIC, "a", ["billing orders 0 a", "billing orders 1 a", "shipping orders 0 a"]),
        (GROUP, None, None, ["billing orders 0 a", "billing orders 0 b", "billing orders 1 a", "billing refunds 0 a"]),
        (GROUP, TOPIC, None, ["billing orders 0 a", "billing orders 0 b", "billing orders 1 a"]),
        (GROUP, None, "a", ["billing orders 0 a", "billing orders 1 a", "billing refunds 0 a"]),
        (GROUP, "refunds", "a", ["billing refunds 0 a"]),
        (GROUP, None, "ended", []),
        ("nobody", None, None, []),
    ],
)
def test_keys_are_named_by_group_topic_and_key(group: str | None, topic: str | None, key: str | None, expected: list[str]) -> None:
    bench = parked_in_many_places()
    assert names(control(bench, A.LIST, group, topic, key)) == expected
    if group == GROUP and expected:
        changed = control(bench, A.REPLAY, group, topic, key)
        assert names(changed) == expected
        assert {row.state for row in changed} == {S.REPLAYING}
        replaying = [row for row in control(bench, A.LIST, None) if row.state is S.REPLAYING]
        assert names(replaying) == expected, "no other one"


def test_list_is_limited_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = parked_in_many_places()
    monkeypatch.setattr("lockstep.broker.groups.parking.LISTED_MAX", 5)
    assert not bench.c.parking.control(ParkControlBody(A.LIST)).more
    monkeypatch.setattr("lockstep.broker.groups.parking.LISTED_MAX", 4)
    reply = bench.c.parking.control(ParkControlBody(A.LIST))
    assert (len(reply.keys), reply.more) == (4, True)
    monkeypatch.setattr("lockstep.broker.groups.parking.LISTED_MAX", 1)
    reply = bench.c.parking.control(ParkControlBody(A.REPLAY, GROUP))
    assert (len(reply.keys), reply.more) == (1, True)
    monkeypatch.undo()
    assert {row.state for row in control(bench, A.LIST)} == {S.REPLAYING}, "all are replayed, also those that the response does not name"


def test_list_of_the_longest_keys_and_errors_fits_into_a_response() -> None:
    bench = Bench()
    keys = [f"{number:05}" + "日" * ((KEY_BYTES_MAX - 5) // 3) for number in range(LISTED_MAX)]
    for number, key in enumerate(keys):
        bench.c.state.parks.park((GROUP, TOPIC, number // 1_000), key, 10, 3, "日" * REASON_LENGTH_MAX, 1 << 40)
    reply = bench.c.parking.control(ParkControlBody(A.LIST))
    assert reply.more
    assert [row.key for row in reply.keys] == keys[: len(reply.keys)]
    assert LISTED_BYTES_MAX / 2 < len(encode_body(reply)) <= LISTED_BYTES_MAX


@pytest.mark.parametrize("action", [A.REPLAY, A.DROP])
def test_change_without_a_group_or_of_a_key_that_is_not_parked_is_refused(action: ParkAction) -> None:
    bench = parked_in_many_places()
    with pytest.raises(LocalProtocolError, match=f"{action.value}: expected a group"):
        control(bench, action, None)
    for topic, key, words in (
        (None, "unknown", "key 'unknown' of group billing is not parked"),
        ("refunds", "b", "key 'b' of group billing is not parked in refunds"),
        (None, "ended", "key 'ended' of group billing is not parked"),
    ):
        with pytest.raises(ParkRefusedError, match=f"{words}$"):
            control(bench, action, GROUP, topic, key)
    assert control(bench, action, "nobody") == [], "all keys of a group that has none"
    assert {row.state for row in control(bench, A.LIST, None)} == {S.PARKED}


def test_key_that_is_being_dropped_is_not_replayed_by_name_and_passed_over_otherwise() -> None:
    bench = parked_in_many_places()
    control(bench, A.DROP, GROUP, "refunds", "a")
    with pytest.raises(ParkRefusedError, match="key 'a' of group billing in refunds queue 0 is being dropped already"):
        control(bench, A.REPLAY, GROUP, None, "a")
    assert {row.state for row in control(bench, A.LIST, GROUP, TOPIC)} == {S.PARKED}, "all that are named, or none"
    assert names(control(bench, A.REPLAY)) == ["billing orders 0 a", "billing orders 0 b", "billing orders 1 a"]
    assert {row.state for row in control(bench, A.DROP)} == {S.DROPPING}
    assert names(control(bench, A.REPLAY)) == []


def test_group_whose_members_do_not_park_replays_nothing_but_may_drop() -> None:
    bench, member = holding(BLOCKS)
    park(bench)
    with pytest.raises(
        ParkRefusedError, match=r'the members of group billing do not replay keys: their retry policy is "3 attempts, .* block"'
    ):
        control(bench, A.REPLAY)
    assert rows(bench) == [("k", S.PARKED, 10)]
    control(bench, A.DROP)
    assert rows(bench) == [("k", S.DROPPING, 10)]
    member.leave()
    member.lock(held={})
    park(bench, "other")
    assert control(bench, A.REPLAY, key="other"), "a group without members replays when one comes"


def test_holder_of_a_queue_is_made_to_ask_for_its_replays_and_nobody_else() -> None:
    bench, member = holding()
    joined(bench, "b", ordered(retry=PARKS))
    bench.drain(object)  # type: ignore[type-var]
    park(bench)
    assert bench.pushed() == {}, "an owner that parks a key has nothing to learn"
    for action in (A.REPLAY, A.DROP):
        control(bench, action)
        assert bench.pushed() == {member.connection: [0]}
    control(bench, A.LIST)
    assert bench.pushed() == {}
    member.close()
    control(bench, A.DROP)
    assert bench.pushed() == {}, "its next LOCK names the queue in any case"


def test_queue_of_a_classic_member_is_not_announced() -> None:
    bench = Bench()
    member = ClassicClient(bench, "c")
    member.connect()
    assert member.lock(0) == [0]
    bench.drain(object)  # type: ignore[type-var]
    park(bench)
    control(bench, A.DROP)
    assert bench.pushed() == {}


def test_lock_names_the_sixteen_keys_that_wait_longest_with_each_grant_and_renewal() -> None:
    bench, member = holding(queues=(0, 1))
    for number in range(20):
        park(bench, f"k{number}", 500 - number)
    assert [result.replays for result in member.lock().values()] == [None, None]
    control(bench, A.REPLAY)
    expected = tuple(ReplayKey(f"k{19 - n}", 481 + n) for n in range(REPLAYS_MAX))
    assert [result.replays for result in member.lock().values()] == [expected, None], "renewed"
    control(bench, A.DROP, key="k19")
    end(bench, 490, None, "k18")
    member.lock(held={})
    granted = member.lock(0)[0].replays
    assert granted is not None
    assert granted[0] == ReplayKey("k19", 481, drop=True)
    assert ReplayKey("k18", 490) in granted
    assert len(granted) == REPLAYS_MAX


# ---------------------------------------------------------------------------------------------- drops without an owner's help


def dropping(retry: str = PARKS) -> tuple[Bench, Client, ParkedKey]:
    bench, member = holding(retry)
    park(bench)
    control(bench, A.DROP)
    row = bench.c.state.parks.get(KEY, "k")
    assert row is not None
    return bench, member, bench.c.state.parks.advance(row, 1_000)


def test_drop_of_a_held_queue_is_ended_by_its_owner_alone() -> None:
    bench, member, row = dropping()
    bench.c.parking.end_unpolled_drop(row)
    assert rows(bench) == [("k", S.DROPPING, 1_000)]
    member.close()
    bench.advance(GRACE - 1)
    bench.c.parking.end_unpolled_drop(row)
    assert rows(bench) == [("k", S.DROPPING, 1_000)], "the owner may come back, and leaves the key out"
    assert end(bench, 10, 1_000) == ParkEndReply(upto=1_000)


def test_drop_without_an_owner_ends_above_what_is_passed_for_good() -> None:
    bench, member, row = dropping()
    commit(member, 5, 700, 900)
    member.lock(held={})
    bench.c.parking.end_unpolled_drop(row)
    assert rows(bench) == [("k", S.ENDED, 1_000)]


@pytest.mark.parametrize(("reached", "state"), [(899, S.DROPPING), (900, S.ENDED), (901, S.ENDED)])
def test_drop_without_an_owner_goes_on_until_it_has_come_so_far(reached: int, state: ParkState) -> None:
    bench, member = holding()
    park(bench)
    control(bench, A.DROP)
    commit(member, 5, 700, 900)
    member.lock(held={})
    row = bench.c.state.parks.get(KEY, "k")
    assert row is not None
    bench.c.parking.end_unpolled_drop(bench.c.state.parks.advance(row, reached))
    assert rows(bench) == [("k", state, reached)]


def test_member_cannot_renew_an_epoch_from_before_its_key_was_dropped_without_it() -> None:
    """It would go on leaving the key out. Another member keeps the contract alive, and is away as well, so that the queue remains free."""
    bench, member = holding()
    other = joined(bench, "b", ordered(retry=PARKS))
    owner = member if bench.c.state.owner(bench.c.state.groups.get(GROUP), TOPIC, 0) == "a" else other  # type: ignore[arg-type]
    if owner is other:
        member.lock(held={})
        other.lock(0)
    park(bench)
    epoch = owner.held[0]
    owner.close()
    bench.advance(TIMEOUT - 1_000)
    for each in (member, other):
        if each is not owner:
            each.beat()
            each.close()
    bench.advance(2_000)
    assert bench.owner(0) is None
    control(bench, A.DROP)
    row = bench.c.state.parks.get(KEY, "k")
    assert row is not None
    bench.c.parking.end_unpolled_drop(bench.c.state.parks.advance(row, 1_000))
    owner.connect()
    assert owner.lock(held={0: epoch})[0].verdict is LockVerdict.STALE


@pytest.mark.parametrize("left", [False, True])
def test_drop_ends_while_a_member_holds_the_queue_that_does_not_park(left: bool) -> None:
    """A member that has left may have parked keys under an earlier contract: its release is awaited."""
    bench, member, row = dropping(BLOCKS)
    if left:
        Client(bench, "b", ordered(retry=BLOCKS)).connect()
        member.leave()
    bench.c.parking.end_unpolled_drop(row)
    assert rows(bench) == [("k", S.DROPPING if left else S.ENDED, 1_000)]
    assert bench.epoch(0) == member.held[0], "it goes on under its grant"


def test_drop_ends_while_a_classic_member_holds_the_queue() -> None:
    bench = Bench()
    member = ClassicClient(bench, "c")
    member.connect()
    member.lock(0)
    park(bench)
    control(bench, A.DROP)
    (row,) = bench.c.state.parks.rows(KEY)
    bench.c.parking.end_unpolled_drop(bench.c.state.parks.advance(row, 1_000))
    assert rows(bench) == [("k", S.ENDED, 1_000)]


# ---------------------------------------------------------------------------------------------------------- resets, deletions


def reset(bench: Bench, *offsets: tuple[int, int], drop_parked: bool = False) -> None:
    queues = tuple(QueueOffset(queue_id, offset) for queue_id, offset in offsets)
    bench.c.admin.reset_progress(ResetBody(GROUP, TOPIC, queues, drop_parked))


@pytest.mark.parametrize("state", [S.PARKED, S.REPLAYING, S.DROPPING])
def test_queue_with_parked_keys_is_not_reset_unless_they_are_forgotten(state: ParkState) -> None:
    bench, member = holding(queues=(0, 1))
    commit(member, 500)
    park(bench, "k")
    park(bench, "l", 20)
    if state is not S.PARKED:
        control(bench, A.REPLAY if state is S.REPLAYING else A.DROP)
    before = rows(bench)
    words = (
        r"group billing is not reset in orders queue 0 at broker-a: 2 keys are parked there\. "
        r"Replay or drop them \(`lockstep park ls billing`\), or forget them with `lockstep group reset-offset … --drop-parked`"
    )
    with pytest.raises(ParkRefusedError, match=words):
        reset(bench, (1, 7), (0, 100))
    assert (rows(bench), bench.progress(0), bench.progress(1)) == (before, (500, 0), (0, 0)), "all queues, or none"
    reset(bench, (1, 7))
    assert bench.progress(1) == (7, 0)
    reset(bench, (0, 100), drop_parked=True)
    assert (rows(bench), bench.progress(0)) == ([], (100, 0))
    assert bench.c.parking.filter(KEY) is None


def test_reset_forgets_keys_whose_replay_has_ended() -> None:
    """They would hide messages that the group is to get again."""
    bench, member = holding()
    park(bench)
    control(bench, A.REPLAY)
    end(bench, 60, 60)
    commit(member, 30)
    reset(bench, (0, 0))
    assert (rows(bench), bench.progress(0)) == ([], (0, 0))


def test_classic_commit_below_progress_is_refused_while_keys_are_parked() -> None:
    bench, member = holding()
    commit(member, 500)
    member.lock(held={})
    park(bench)
    tool = ClassicClient(bench, "c")
    for offset in (500, 501):
        tool.update(0, offset)
        assert bench.progress(0) == (offset, 0)
    with pytest.raises(ParkRefusedError, match="group billing is not reset in orders queue 0"):
        tool.update(0, 500)
    assert (bench.progress(0), rows(bench)) == ((501, 0), [("k", S.PARKED, 10)])
    control(bench, A.REPLAY)
    end(bench, 600, 600)
    tool.update(0, 500)
    assert (bench.progress(0), rows(bench)) == ((500, 0), [])


def classic_resets(bench: Bench) -> Any:
    nothing: Any = None

    class Everybody:
        def members(self, group: str) -> list[object]:
            return [object()]

    class Topics:
        def require_layout(self, topic: str) -> TopicLayout:
            return layout()

        def own_read_count(self, found: TopicLayout) -> int:
            return 4

    class Budget:
        async def take(self) -> None:
            """Take nothing."""

    anything: Any = (Everybody(), Topics(), Budget())
    return ResetProcessor(bench.c, anything[0], nothing, anything[1], anything[2])


class Asked:
    """A request of a tool."""

    def __init__(self, header: object) -> None:
        self.header = header
        self.user = ANYBODY
        self.endpoint: Any = type("Peer", (), {"peer": "10.0.0.9:1"})()

    def reply(self, **fields: object) -> object:
        return fields


async def test_resets_by_tools_of_rocketmq_are_refused_while_keys_are_parked() -> None:
    bench, member = holding()
    commit(member, 500)
    park(bench)
    source = ordered("source")
    Client(bench, "s", source).connect()
    bench.c.admin.reset_progress(ResetBody("source", TOPIC, (QueueOffset(0, 50),)))
    resets = classic_resets(bench)
    refused = pytest.raises(ParkRefusedError, match="group billing is not reset in orders queue 0 at broker-a: 1 keys are parked there")
    with refused:
        await resets.reset(Asked(ResetOffsetHeader(TOPIC, GROUP, -1, True, queue_id=0, offset=100)))
    with refused:
        resets.clone(Asked(CloneOffsetHeader("source", GROUP, TOPIC)))
    assert (bench.progress(0), rows(bench)) == ((500, 0), [("k", S.PARKED, 10)])


def test_deletion_of_the_group_forgets_its_keys() -> None:
    bench, member = holding()
    park(bench)
    bench.c.state.parks.park(("shipping", TOPIC, 0), "k", 10, 3, "poisoned", 0)
    member.leave()
    member.lock(held={})
    bench.c.admin.delete_group(GROUP, with_progress=True)
    for _ in range(2):
        assert names(control(bench, A.LIST, None)) == ["shipping orders 0 k"]
        bench.restart()


def test_deletion_of_the_topic_forgets_its_keys() -> None:
    bench = Bench(layout(), layout("refunds"))
    for topic in (TOPIC, "refunds"):
        bench.c.state.parks.park((GROUP, topic, 0), "k", 10, 3, "poisoned", 0)
    bench.layouts.adopt(TopicLayout(TOPIC, LayoutVersion(2, 7), ()))
    bench.c.layout_changed(TOPIC)
    for _ in range(2):
        assert names(control(bench, A.LIST, None)) == ["billing refunds 0 k"]
        bench.restart()


# --------------------------------------------------------------------------------------------------------------------- restart


def all_states(bench: Bench) -> list[ParkedKey]:
    """Park a key in each state, and return the rows."""
    for number, state in enumerate(S):
        park(bench, state.value, 100 + number)
        if state in (S.REPLAYING, S.ENDED):
            control(bench, A.REPLAY, key=state.value)
        if state is S.DROPPING:
            control(bench, A.DROP, key=state.value)
    end(bench, 110, 0, "ended")
    return bench.c.state.parks.rows(KEY)


@pytest.mark.parametrize("assumed_loss", [False, True])
def test_keys_are_parked_after_a_restart_as_they_were(assumed_loss: bool) -> None:
    bench, member = holding()
    before = all_states(bench)
    bench.restart(assumed_loss=assumed_loss)
    assert bench.c.state.parks.rows(KEY) == before
    member.connect()
    result = member.lock()[0]
    if assumed_loss:
        assert result.verdict is LockVerdict.STALE
        bench.advance(GRACE)
        result = member.lock(0)[0]
    assert result.replays == (ReplayKey("replaying", 101), ReplayKey("dropping", 102, drop=True))


def test_what_pulls_have_passed_is_forgotten_by_a_restart() -> None:
    """So the owner names its next pull with each end."""
    bench, _ = holding()
    park(bench)
    control(bench, A.REPLAY)
    bench.c.parking.note_passed(KEY, bench.c.parking.filter(KEY), 60)
    assert end(bench, 20, 0) == ParkEndReply(until=60)
    bench.restart()
    assert end(bench, 20, 0) == ParkEndReply(upto=20)


@pytest.mark.parametrize(("queue_end", "expected"), [(105, [100, 101, 102, 105]), (104, [100, 101, 102, 104]), (101, [100, 101, 101, 101])])
def test_rows_end_with_a_queue_that_lost_its_last_messages(queue_end: int, expected: list[int]) -> None:
    bench, member = holding()
    commit(member, 103)
    all_states(bench)
    bench.ends.queues[TOPIC, 0] = (0, queue_end)
    bench.restart(assumed_loss=True)
    found = bench.c.state.parks.rows(KEY)
    assert [row.next for row in found] == expected
    assert [row.upto for row in found] == [0, 0, 0, expected[3]]
    assert bench.progress(0)[0] == min(103, queue_end)


@pytest.mark.parametrize("moved_by", ["retention", "restart"])
def test_rows_move_to_the_new_minimum_of_their_queue(moved_by: str) -> None:
    bench, member = holding()
    commit(member, 50)
    all_states(bench)
    minimum = (TOPIC, 0)
    bench.ends.queues[minimum] = (102, 1_000)
    if moved_by == "retention":
        bench.retention_moved({minimum: 102})
    else:
        bench.restart()
    assert [row.next for row in bench.c.state.parks.rows(KEY)] == [102, 102, 102, 110]
    assert bench.progress(0)[0] == 102


def test_snapshot_has_the_parked_keys() -> None:
    bench, _ = holding()
    before = all_states(bench)
    again = Bench()
    again.c.restore(bench.c.snapshot())
    assert again.c.state.parks.rows(KEY) == before
