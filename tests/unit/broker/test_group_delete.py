"""DELETE_SUBSCRIPTIONGROUP removes settings and progress in one change of the log; a group in use is not deleted."""

from dataclasses import replace
from typing import cast

import pytest

from lockstep.broker.processors.group_changes import GroupChangesProcessor
from lockstep.broker.store import Store
from lockstep.protocol.bodies import GroupSettings, LockVerdict
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError
from lockstep.protocol.headers.clients import DeleteGroupHeader
from lockstep.runtime.requests.dispatch import Dispatcher
from support.broker_fakes import FakeEndpoint, FakeStore, request
from support.coordination_kit import CONFIG, GRACE, GROUP, TOPIC, Bench, ClassicClient, Client, joined, layout, replay

SILENT = GroupSettings(GROUP, consume_enable=False)


def commit(on: Bench, group: str = GROUP, queue_id: int = 0) -> None:
    on.c.legacy.update_offset(99, (group, TOPIC, queue_id), 5, on.now_ms)


def delete(on: Bench, group: str = GROUP) -> int | None:
    return on.c.admin.delete_group(group, with_progress=True)


def bench_with_group() -> Bench:
    """Return a bench with a group that has settings, progress in two queues, and a free lock."""
    on = Bench()
    on.c.admin.set_settings(SILENT)
    commit(on, queue_id=0)
    commit(on, queue_id=1)
    a = joined(on, "a")
    a.lock(0)
    a.leave()
    a.close()
    on.advance(60_000)
    on.flush()
    return on


def test_deletion_removes_all_state_of_a_group_in_one_durable_change() -> None:
    on = bench_with_group()
    commit(on, "other")
    on.flush()
    assert delete(on) == 4, "the member began in all queues"
    assert len(on.journal) == 1
    assert (on.c.status.groups(), len(on.c.state.progress), len(on.c.state.settings)) == (("other",), 1, 0)
    on.flush()
    assert replay(on).snapshot() == on.c.snapshot()
    on.restart()
    assert on.c.status.groups() == ("other",)
    assert on.c.status.read(GROUP, on.now_ms, str) is None
    a = joined(on, "a")
    assert a.lock(0)[0].verdict is LockVerdict.OK
    assert a.pull(0) is True, "its settings are gone: it may consume"


def test_deletion_replayed_on_a_snapshot_that_contains_it_changes_nothing() -> None:
    on = bench_with_group()
    delete(on)
    on.flush()
    kept = on.c.snapshot()
    again = replay(on)
    again.apply(("group.forgotten", GROUP))
    assert again.snapshot() == kept


def test_deleted_groups_no_longer_count_for_the_group_limit() -> None:
    """Groups with settings are never forgotten: without deletion such requests would fill the table permanently."""
    on = Bench(config=replace(CONFIG, groups_max=2))
    for number in range(2):
        on.c.admin.set_settings(GroupSettings(f"g{number}"))
    with pytest.raises(NoPermissionError, match="`lockstep group delete` removes one"):
        commit(on, "new")
    assert delete(on, "g0") == 0
    commit(on, "new")
    assert on.c.status.groups() == ("g1", "new")


def test_group_with_members_is_not_deleted_and_they_are_named() -> None:
    on = Bench()
    on.c.admin.set_settings(SILENT)
    for name in "ab":
        Client(on, name).connect()
    on.flush()
    before = on.c.snapshot()
    with pytest.raises(
        NoPermissionError, match=r"billing was not deleted: it has 2 members at broker-a: a, b\. Stop them, and run `lockstep"
    ):
        delete(on)
    assert (on.c.snapshot(), len(on.journal)) == (before, 0)


def test_group_with_a_disconnected_member_is_in_use_for_the_grace() -> None:
    on = Bench()
    a = joined(on, "a")
    a.close()
    with pytest.raises(NoPermissionError, match="has 1 members"):
        delete(on)
    on.advance(GRACE + 1_000)
    assert delete(on) is None, "nothing was left of it"


def test_group_with_queues_held_by_a_non_member_is_not_deleted_until_they_are_free() -> None:
    on = Bench()
    assert ClassicClient(on, "stranger").lock(0, group=GROUP) == [0]
    with pytest.raises(
        NoPermissionError, match=r"held by clients which are not members \(any more\): stranger\. They are free at the latest 60 s"
    ):
        delete(on)
    on.advance(61_000)
    assert delete(on) == 0
    on.flush()
    assert replay(on).snapshot() == on.c.snapshot()
    assert ClassicClient(on, "other").lock(0, group=GROUP) == [0]


def test_rejection_states_how_long_a_silent_session_keeps_its_queues() -> None:
    on = Bench(config=replace(CONFIG, session_timeout_ms=600_000))
    a = joined(on, "a")
    a.lock(0)
    a.leave()
    on.advance(599_999, step_ms=1_000)
    with pytest.raises(
        NoPermissionError, match=r"(?s)held by clients which are not members .*: a\. They are free at the latest 600 s after"
    ):
        delete(on)
    on.advance(1)
    assert delete(on) == 4


def test_group_with_a_draining_member_is_in_use() -> None:
    on = Bench()
    a = joined(on, "a")
    a.lock(0)
    a.leave()
    with pytest.raises(NoPermissionError, match="not members"):
        delete(on)
    assert a.commit(0, 7, release=True) is LockVerdict.OK
    assert delete(on) == 4


def test_deletion_without_the_flag_keeps_progress_as_in_rocketmq() -> None:
    on = bench_with_group()
    assert on.c.admin.delete_group(GROUP, with_progress=False) == 0
    assert len(on.journal) == 1
    assert (on.c.status.groups(), len(on.c.state.progress), len(on.c.state.settings)) == ((GROUP,), 4, 0)
    on.restart()
    assert (on.c.status.groups(), len(on.c.state.progress), len(on.c.state.settings)) == ((GROUP,), 4, 0)
    on.c.admin.set_settings(GroupSettings("only-settings"))
    on.c.admin.delete_group("only-settings", with_progress=False)
    assert on.c.status.groups() == (GROUP,)


@pytest.mark.parametrize("with_progress", [True, False])
def test_deletion_of_an_unknown_group_writes_nothing(with_progress: bool) -> None:
    on = Bench()
    assert on.c.admin.delete_group("unknown", with_progress=with_progress) is None
    assert len(on.journal) == 0
    with pytest.raises(LocalProtocolError, match="group is blank"):
        on.c.admin.delete_group("", with_progress=with_progress)


def test_group_is_deleted_although_its_topics_exist() -> None:
    on = Bench()
    on.layouts.adopt(layout(f"%RETRY%{GROUP}", 1))
    commit(on)
    assert delete(on) == 1
    assert on.c.status.groups() == ()
    assert on.layouts.get(f"%RETRY%{GROUP}") is not None, "what lies there is not lost with it"


@pytest.mark.parametrize(
    ("fields", "progress_count"),
    [({}, 1), ({"cleanOffset": True}, 0), ({"removeOffset": True}, 0), ({"cleanOffset": False}, 1)],
    ids=["no flag", "RocketMQ 5", "RocketMQ 4.9", "false"],
)
def test_classic_delete_request_is_decoded_and_its_response_waits_for_the_log(fields: dict[str, bool], progress_count: int) -> None:
    on = Bench()
    on.c.admin.set_settings(SILENT)
    commit(on)
    store, endpoint = FakeStore(), FakeEndpoint()
    store.confirm_now = False
    dispatcher = Dispatcher([GroupChangesProcessor(on.c)], cast(Store, store))
    dispatcher(Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, 7, fields={"groupName": GROUP, **fields}), endpoint)  # type: ignore[arg-type]
    assert endpoint.take() == []
    store.waiting.pop()()
    (response,) = endpoint.take()
    assert response.code == ResponseCode.SUCCESS, response.remark
    assert (len(on.c.state.progress), len(on.c.state.settings)) == (progress_count, 0)
    store.confirm_now = True
    dispatcher(request(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("unknown", clean_offset=True)), endpoint)  # type: ignore[arg-type]
    assert endpoint.take()[0].code == ResponseCode.SUCCESS
