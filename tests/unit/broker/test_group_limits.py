"""The limits of what all clients together make a broker remember about groups, and when it is forgotten."""

import asyncio
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from lockstep.broker.figures.figures import Figures
from lockstep.broker.figures.metrics import BrokerMetrics
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.tables.activity_table import DAY_MS
from lockstep.broker.journal import Journal
from lockstep.broker.maintenance import StoreMaintenance
from lockstep.broker.processors.topic import TopicProcessor
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.bodies import ConsumeFromWhere, GroupSettings, LockResult, LockVerdict, QueueOffset, ReplicaStatus, ResetBody
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import BrokerError, LocalProtocolError, NoPermissionError, ServiceNotAvailableError
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.clock import Clock
from lockstep.runtime.metrics import SLICE_ITEMS
from lockstep.runtime.requests.audit import RequestAudit
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.security.server_security import OPEN
from support.broker_fakes import FakeEndpoint, FakeHost, request
from support.coordination_kit import BROKER, CONFIG, GROUP, TOPIC, Bench, ClassicClient, Client, joined, layout, ordered, replay


def bench(**limits: int) -> Bench:
    return Bench(config=replace(CONFIG, **limits))


def commit(on: Bench, group: str, queue_id: int = 0, offset: int = 5) -> None:
    """Commit without an epoch, as a client that is not a member."""
    on.c.legacy.update_offset(99, (group, TOPIC, queue_id), offset, on.now_ms)


def fill_disk(on: Bench) -> None:
    """Fill the disk: from now on it has no room for new records."""

    def full(what: str) -> None:
        raise ServiceNotAvailableError(f"the disk is full: {what}")

    on.c.state.disk_check = full


def next_day(on: Bench, days: int = 1) -> list[str]:
    """Return the groups that are forgotten as days pass."""
    gone = []
    for _ in range(days):
        today = on.c.state.activity.today + 1
        assert on.c.set_day(today * DAY_MS)
        gone += [group for group in idle_groups(on.c) if on.c.admin.forget_idle(group) is not None]
    return gone


def idle_groups(coordination: Coordination) -> list[str]:
    return [group for group in coordination.status.groups() if coordination.admin.is_idle(group)]


BEGINNINGS = {
    "a commit": lambda on, group: commit(on, group),
    "a reset": lambda on, group: on.c.admin.reset_progress(ResetBody(group, TOPIC, (QueueOffset(0, 5),))),
    "a classic lock": lambda on, group: ClassicClient(on, "s").lock(0, group=group),
    "settings": lambda on, group: on.c.admin.set_settings(GroupSettings(group)),
    "a member": lambda on, group: Client(on, f"of-{group}", ordered(group)).connect(),
    "a classic member": lambda on, group: ClassicClient(on, f"of-{group}", ordered(group)).connect(),
}


@pytest.mark.parametrize("how", BEGINNINGS)
def test_group_above_the_limit_is_rejected_by_name_and_known_groups_continue(how: str) -> None:
    on = bench(groups_max=2)
    BEGINNINGS[how](on, "first")
    commit(on, "second")
    with pytest.raises(NoPermissionError, match=r"knows 2 groups, 2 are allowed \(--groups-max\): group third is refused"):
        BEGINNINGS[how](on, "third")
    assert on.c.status.groups() == ("first", "second")
    BEGINNINGS[how](on, "first")
    commit(on, "second", 1)
    assert len(on.c.state.activity) == 2


def test_rejected_group_does_not_prevent_its_client_from_joining_others() -> None:
    on = bench(groups_max=2)
    a = Client(on, "a", ordered("one"), ordered("two"), ordered("three"), ordered("one-more"))
    with pytest.raises(NoPermissionError, match="group three is refused"):
        a.connect()
    assert (on.lists("one"), on.lists("two"), on.lists("three")) == (("a",), ("a",), ())


def test_rejected_group_does_not_prevent_a_classic_client_from_joining_others() -> None:
    on = bench(groups_max=2)
    commit(on, "here")
    a = ClassicClient(on, "a", ordered("one"), ordered("too-many"), ordered("here"))
    with pytest.raises(NoPermissionError, match="group too-many is refused"):
        a.connect()
    assert (on.lists("one"), on.lists("here"), on.lists("too-many")) == (("a",), ("a",), ())


def test_groups_removed_with_their_topic_leave_no_grant_count() -> None:
    """The only topic of groups with locks is deleted: their metrics are removed with the groups."""
    on = bench()
    for number in range(5):
        assert ClassicClient(on, "s").lock(0, group=f"g{number}") == [0]
    assert len(dict(on.c.state.locks.grant_counts)) == 5
    on.layouts.adopt(layout(queues=0, counter=2))
    on.c.layout_changed(TOPIC)
    assert (len(on.c.state.activity), dict(on.c.state.locks.grant_counts)) == (0, {})


@pytest.mark.parametrize("how", BEGINNINGS)
def test_group_without_state_no_longer_counts_for_the_limit(how: str) -> None:
    """State that only a member or a topic had created is removed with it."""
    on = bench(groups_max=1)
    BEGINNINGS[how](on, "first")
    if how.endswith("member"):
        on.c.membership.connection_closed(on.connections, on.now_ms)
        on.advance(60_000)
    elif how != "settings":
        on.layouts.adopt(layout(queues=0, counter=2))
        on.c.layout_changed(TOPIC)
    assert len(on.c.state.activity) == (how == "settings")
    on.flush()
    assert len(replay(on).state.activity) == len(on.c.state.activity)


def test_progress_of_all_groups_is_limited() -> None:
    on = bench(progress_max=3)
    for queue_id in range(3):
        commit(on, "g", queue_id)
    with pytest.raises(
        NoPermissionError, match=r"keeps progress of 3 queues of groups, 3 are allowed \(--progress-max\): group g can't begin"
    ):
        commit(on, "g", 3)
    commit(on, "g", 2, 9)
    with pytest.raises(NoPermissionError):
        on.c.admin.reset_progress(ResetBody("h", TOPIC, (QueueOffset(0, 5),)))
    a = joined(on, "a")
    response = a.lock(0)[0]
    assert (response.verdict, "--progress-max" in (response.remark or "")) == (LockVerdict.REFUSED, True)
    assert len(on.c.state.progress) == 3


@pytest.mark.parametrize("ordered_group", [True, False])
def test_group_with_one_commit_starts_in_no_other_queue_above_the_limit(ordered_group: bool) -> None:
    """The start policy is resolved for all queues of the topic at once, regardless of the queue that the member names."""
    on = Bench(layout(queues=1_000), config=replace(CONFIG, progress_max=3))
    commit(on, GROUP, 0)
    a = joined(on, "a", ordered(ordered=ordered_group))
    if ordered_group:
        response = a.lock(0)[0]
    else:
        header = QueryConsumerOffsetHeader(GROUP, TOPIC, 0, where=ConsumeFromWhere.FIRST_OFFSET)
        response = cast(LockResult, on.c.lock_sync.query_start(a.connection, header, on.now_ms))
    assert response.verdict is LockVerdict.REFUSED
    assert "--progress-max" in (response.remark or "")
    assert "group billing can't begin in 999 queues of orders" in (response.remark or "")
    assert len(on.c.state.progress) == 1


def test_group_with_one_commit_starts_in_no_other_queue_on_a_nearly_full_disk() -> None:
    on = Bench(layout(queues=1_000))
    commit(on, GROUP, 0)
    a = joined(on, "a")
    fill_disk(on)
    assert a.lock(0)[0].verdict is LockVerdict.REFUSED
    assert len(on.c.state.progress) == 1


def test_group_with_progress_in_all_queues_starts_even_at_the_limit() -> None:
    on = bench(progress_max=4)
    for queue_id in range(4):
        commit(on, GROUP, queue_id)
    a = joined(on, "a")
    assert [response.verdict for response in a.lock(0, 1, 2, 3).values()] == [LockVerdict.OK] * 4
    assert len(on.c.state.progress) == 4


def test_reset_counts_queues_without_progress_for_the_limit() -> None:
    on = bench(progress_max=2)
    commit(on, "g", 0)
    with pytest.raises(NoPermissionError, match="group g can't begin in 3 queues of orders"):
        on.c.admin.reset_progress(ResetBody("g", TOPIC, tuple(QueueOffset(queue_id, 0) for queue_id in range(4))))
    assert len(on.c.state.progress) == 1


def test_member_starts_in_all_queues_of_its_topic_or_in_none() -> None:
    on = bench(progress_max=4)
    commit(on, "g")
    a = joined(on, "a")
    assert a.lock(0)[0].verdict is LockVerdict.REFUSED
    assert len(on.c.state.progress) == 1


def test_rejection_in_a_topic_of_many_queues_builds_no_queue_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of n rejected queues would build n: 2,000 took two seconds of one loop turn."""
    on = bench(progress_max=1)
    commit(on, "g")
    a = joined(on, "a")
    built: list[str] = []
    queues_of = TopicLayout.queues_of

    def counted(self: TopicLayout, broker_name: str) -> list[MessageQueue]:
        built.append(self.topic)
        return queues_of(self, broker_name)

    monkeypatch.setattr(TopicLayout, "queues_of", counted)
    assert [response.verdict for response in a.lock(0, 1, 2, 3).values()] == [LockVerdict.REFUSED] * 4
    assert built == []


def test_locks_of_non_members_are_limited() -> None:
    on = bench(progress_max=2)
    stranger = ClassicClient(on, "s")
    assert stranger.lock(0, 1, group="g") == [0, 1]
    with pytest.raises(NoPermissionError, match="keeps 2 locks"):
        stranger.lock(2, group="g")
    assert stranger.lock(0, 1, group="g") == [0, 1]


def test_lock_request_above_the_limit_locks_none_of_its_queues() -> None:
    on = bench(progress_max=2)
    on.flush()
    with pytest.raises(NoPermissionError, match=r"keeps 0 locks, 2 are allowed .*: 3 more from \('g', 'orders', 0\) are refused"):
        ClassicClient(on, "s").lock(0, 1, 2, group="g")
    assert (len(on.journal), len(on.c.state.activity), on.c.status.held_count("g")) == (0, 0, None)


@pytest.mark.parametrize("how", BEGINNINGS)
def test_nearly_full_disk_rejects_new_state_and_continues_existing_state(how: str) -> None:
    on = bench()
    a = joined(on, "a", ordered(GROUP))
    a.lock(0)
    commit(on, "first")
    before = on.c.snapshot()
    fill_disk(on)
    with pytest.raises(ServiceNotAvailableError, match=r"full: .*new"):
        BEGINNINGS[how](on, "new")
    assert on.c.snapshot() == before
    assert a.commit(0, 7) is LockVerdict.OK
    assert a.lock()[0].verdict is LockVerdict.OK
    commit(on, "first", 0, 9)
    assert a.commit(0, 8, release=True) is LockVerdict.OK


def test_nearly_full_disk_rejects_a_new_member_of_a_known_group() -> None:
    on = bench()
    a, b = Client(on, "a"), Client(on, "b")
    a.connect()
    fill_disk(on)
    with pytest.raises(ServiceNotAvailableError, match=f"member b of group {GROUP}"):
        b.connect()
    a.connect()
    assert on.lists() == ("a",)


def test_idle_group_is_forgotten_with_all_its_state_after_group_idle_days() -> None:
    on = bench(group_idle_days=30)
    commit(on, "idle")
    commit(on, "busy")
    ClassicClient(on, "s").lock(1, group="idle")
    on.advance(61_000)
    assert next_day(on, 29) == []
    commit(on, "busy", 0, 9)
    assert next_day(on) == ["idle"]
    assert (on.c.status.groups(), len(on.c.state.progress), on.c.status.read("idle", on.now_ms, str)) == (("busy",), 1, None)
    on.flush()
    assert replay(on).snapshot() == on.c.snapshot()
    assert on.c.legacy.query_offset(("idle", TOPIC, 0), young=False) is None


@pytest.mark.parametrize(("setting", "limit", "idle_days"), [(30, 7, 7), (0, 7, 7), (3, 7, 3)])
def test_group_whose_commits_bring_a_limit_is_forgotten_after_the_shorter_time(setting: int, limit: int, idle_days: int) -> None:
    on = bench(group_idle_days=setting)
    on.c.legacy.update_offset(99, ("query", TOPIC, 0), 5, on.now_ms, limit)
    commit(on, "other")
    on.flush()
    again = replay(on)
    again.restore(on.c.snapshot())
    assert again.snapshot() == on.c.snapshot(), "it is durable"
    assert "query" not in next_day(on, idle_days - 1)
    assert "query" in next_day(on)
    assert replayed_limit(on, "query") == 0
    on.c.legacy.update_offset(99, ("query", TOPIC, 0), 5, on.now_ms)
    assert "query" not in next_day(on, 7) or setting == 3, "the limit is forgotten with the group"


def replayed_limit(on: Bench, group: str) -> int:
    on.flush()
    return replay(on).state.activity._limits.get(group, 0)


@pytest.mark.parametrize("days", [0, -1, 3_651])
def test_invalid_limit_of_idle_days_is_refused_and_nothing_is_committed(days: int) -> None:
    on = bench()
    with pytest.raises(LocalProtocolError, match=f"idleDays {days} of group query: expected 1 to 3650"):
        on.c.legacy.update_offset(99, ("query", TOPIC, 0), 5, on.now_ms, days)
    assert "query" not in on.c.state.activity


@pytest.mark.parametrize("how", ["a member", "a held queue", "settings", "0 days"])
def test_group_in_use_is_never_forgotten(how: str) -> None:
    on = bench(group_idle_days=0 if how == "0 days" else 30)
    commit(on, GROUP)
    if how == "a member":
        Client(on, "a").connect()
    elif how == "a held queue":
        assert ClassicClient(on, "s").lock(0) == [0]
    elif how == "settings":
        on.c.admin.set_settings(GroupSettings(GROUP))
    assert next_day(on, 100) == []
    assert len(on.c.state.progress) == 1


def test_days_while_the_broker_is_stopped_do_not_count_as_idle() -> None:
    on = bench(group_idle_days=30)
    on.c.set_day(20_000 * DAY_MS)
    commit(on, GROUP)
    on.flush()
    again = replay(on)
    again.enter_term(on.c.state.term + 1, assumed_loss=False, now_ms=on.now_ms)
    again.set_day(20_100 * DAY_MS)
    again.set_day(20_101 * DAY_MS)
    assert idle_groups(again) == []
    for day in range(20_102, 20_131):
        again.set_day(day * DAY_MS)
    assert idle_groups(again) == [GROUP]


@pytest.mark.parametrize("jumps", [(0, 20_000), (40_000, 20_000), (20_000, 0, 20_000)])
def test_clock_jump_makes_no_group_idle(jumps: tuple[int, ...]) -> None:
    """A machine without a battery starts in 1970 and its clock is set later."""
    on = bench(group_idle_days=30)
    on.c.set_day(20_000 * DAY_MS)
    commit(on, "before")
    on.flush()
    again = replay(on)
    again.enter_term(on.c.state.term + 1, assumed_loss=False, now_ms=on.now_ms)
    for day in jumps:
        again.set_day(day * DAY_MS)
        again.legacy.update_offset(99, (f"at-{day}", TOPIC, 0), 5, on.now_ms)
        again.legacy.update_offset(99, ("before", TOPIC, 0), 6, on.now_ms)
        assert idle_groups(again) == []
    again.set_day((jumps[-1] + 1) * DAY_MS)
    assert idle_groups(again) == []


def test_idle_days_count_from_the_departure_of_the_last_member() -> None:
    on = bench(group_idle_days=30)
    commit(on, GROUP)
    a = joined(on, "a")
    next_day(on, 100)
    a.leave()
    a.close()
    on.advance(60_000)
    assert next_day(on, 29) == []
    assert next_day(on) == [GROUP]


def test_commits_of_one_day_are_one_activity_change() -> None:
    on = bench()
    commit(on, "g")
    on.flush()
    before = len(on.journal)
    commit(on, "g", 0, 6)
    assert len(on.journal) == before + 1
    on.flush()
    on.c.set_day(DAY_MS)
    commit(on, "g", 0, 7)
    assert len(on.journal) == 2


def test_groups_whose_activity_record_was_lost_to_damage_count_as_active_at_the_start() -> None:
    on = bench(group_idle_days=30)
    commit(on, "g")
    kept: dict[str, Any] = {**on.c.snapshot(), "activity": []}
    again = Coordination(on.config, on.layouts, on.ends, on.journal)
    again.restore(kept)
    again.set_day(20_000 * DAY_MS)
    again.enter_term(on.c.state.term + 1, assumed_loss=False, now_ms=on.now_ms)
    assert again.status.groups() == ("g",)
    assert idle_groups(again) == []


async def test_idle_groups_are_forgotten_one_per_turn(caplog: pytest.LogCaptureFixture) -> None:
    on = bench(group_idle_days=1)
    for number in range(5):
        commit(on, f"g{number}")
    on.c.set_day(DAY_MS)

    class State:
        coordination = on.c

    keeper = StoreMaintenance(FakeHost(), None, State())  # type: ignore[arg-type]
    task = asyncio.ensure_future(keeper._forget_groups())
    left = []
    while not task.done():
        await asyncio.sleep(0)
        left.append(len(on.c.state.activity))
    assert left == [4, 3, 2, 1, 0, 0]
    assert sum("group.forgotten" in record.getMessage() for record in caplog.records) <= 5


async def test_scrape_reads_at_most_a_slice_of_entries_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    on = Bench(layout(queues=3 * SLICE_ITEMS))
    for queue_id in range(3 * SLICE_ITEMS):
        commit(on, "large", queue_id)
    for number in range(SLICE_ITEMS):
        commit(on, f"g{number}", 0)
        commit(on, f"g{number}", 1)
    turns = [0]

    class Store:
        def queue_totals(self) -> list[tuple[str, int, int, int]]:
            return [(TOPIC, 1, 1, 1)] * 10

        def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
            turns[-1] += 1
            return 0, 5

        def now_ms(self) -> int:
            return 0

    class State:
        coordination, layouts = on.c, LayoutTable()
        topics = TopicTable(layouts, Journal(), "broker-a")

    class Pulls:
        delivered: ClassVar[dict[object, object]] = {}
        held_count = held_max = excess_count = 0

    class Config:
        cluster = name = "c"

    class Server:
        endpoints: ClassVar[dict[int, object]] = {}
        security = OPEN

    parts = Config(), Store(), State(), Pulls(), Figures(Clock(), Store(), State(), Pulls())  # type: ignore[arg-type]
    status = ReplicaStatus("broker-a", "c", "", "master", "", 1, 0, 0, 0)

    async def expired() -> int:
        return 0

    measured = lambda: status, None, int, None, lambda: (0, 0, 0), expired
    metrics = BrokerMetrics(*parts, RequestAudit("c"), UserQuotas(None, Clock()), *measured)  # type: ignore[arg-type]
    for part in ("_log", "_waiting", "_halves"):
        monkeypatch.setattr(BrokerMetrics, part, lambda self, *figures: None)
    scrape = asyncio.ensure_future(metrics.render({}, Server()))
    while not scrape.done():
        turns.append(0)
        await asyncio.sleep(0)
    text = scrape.result().decode()
    assert "consumer_group_number{" in text
    assert max(turns) <= SLICE_ITEMS
    assert sum(turns) == 5 * SLICE_ITEMS


def test_status_of_one_group_reads_only_that_group() -> None:
    on = bench()
    for number in range(50):
        commit(on, f"g{number}")
    looked: list[str] = []
    table = on.c.state.progress
    of_topic = table.progress_in_topic

    def counted(group: str, topic: str) -> Any:
        looked.append(group)
        return of_topic(group, topic)

    table.progress_in_topic = counted  # type: ignore[method-assign]
    assert on.c.status.read("g7", on.now_ms, str) is not None
    assert looked == ["g7"]


@pytest.mark.parametrize("how", ["a commit", "a reset", "a classic lock"])
def test_rejected_request_leaves_no_state(how: str) -> None:
    """If the group of a rejected reset were counted, it would block others for a month."""
    on = bench(progress_max=0)
    for number in range(3):
        with pytest.raises(BrokerError, match="--progress-max"):
            BEGINNINGS[how](on, f"g{number}")
    assert (len(on.c.state.activity), len(on.journal)) == (0, 0)


def test_contract_that_the_log_cannot_store_leaves_no_group() -> None:
    on = bench()
    with pytest.raises(LocalProtocolError, match=r"'group.contract' can't be written to the log"):
        Client(on, "a", ordered(retry="\ud800")).connect()
    assert len(on.c.state.activity) == 0


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_group_without_members_counts_while_the_broker_has_its_topic(prefix: str) -> None:
    """Otherwise clients that join, send a message back and leave, each in a group of its own, would create topics beyond the limit."""
    on = bench(groups_max=1, group_idle_days=30)
    on.layouts.adopt(layout(f"{prefix}first", 1))
    a = joined(on, "a", ordered("first"))
    a.leave("first")
    assert on.c.status.groups() == ("first",)
    with pytest.raises(NoPermissionError, match="group second is refused"):
        commit(on, "second")
    on.layouts.adopt(layout(f"{prefix}first", 0, counter=2))
    on.c.layout_changed(f"{prefix}first")
    assert on.c.status.groups() == ()
    commit(on, "second")


def test_group_with_a_topic_at_another_broker_only_does_not_count() -> None:
    on = bench()
    on.layouts.adopt(layout("%RETRY%first", 0, others=1))
    a = joined(on, "a", ordered("first"))
    a.leave("first")
    assert len(on.c.state.activity) == 0


def test_idle_group_is_forgotten_although_its_topic_exists() -> None:
    on = bench(group_idle_days=30)
    on.layouts.adopt(layout("%RETRY%first", 1))
    commit(on, "first")
    assert next_day(on, 30) == ["first"]


@pytest.mark.parametrize("how", ["by request", "by a first send"])
def test_nearly_full_disk_rejects_new_topics_and_alters_known_ones(how: str) -> None:
    def full(what: str) -> None:
        raise ServiceNotAvailableError(f"the disk is full: {what}")

    topics = TopicTable(LayoutTable([layout()]), Journal(), BROKER)
    processor = TopicProcessor(topics, WriteHolds(), FakeHost().clock, auto_create=True, may_begin=full)
    endpoint = FakeEndpoint()

    def send_request(topic: str) -> int:
        if how == "by a first send":
            try:
                processor.find_or_create(topic, 4)
            except BrokerError as error:
                return error.wire_code
            return 0
        requested = replace(layout(topic, queues=8, counter=2))
        Dispatcher([processor])(
            request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic), bytes(encode_body(requested))), cast(Any, endpoint)
        )
        return endpoint.take()[0].code

    assert send_request("new") == ResponseCode.SERVICE_NOT_AVAILABLE
    assert topics.find_layout("new") is None
    assert send_request(TOPIC) == 0
