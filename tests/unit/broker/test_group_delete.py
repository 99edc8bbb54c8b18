"""DELETE_SUBSCRIPTIONGROUP: settings and progress go in one change of the log, and make room; a group in use is refused."""

from dataclasses import replace
from typing import cast

import pytest

from lockstep.broker.processors.status import StatusProcessor
from lockstep.broker.store import Store
from lockstep.protocol.bodies import BrokerStatus, GroupSettings, LockVerdict
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError
from lockstep.protocol.headers.clients import DeleteGroupHeader
from lockstep.runtime.dispatch import Dispatcher
from support.broker_fakes import FakeEndpoint, FakeStore, request
from support.coordination_kit import CONFIG, GRACE, GROUP, TOPIC, Bench, ClassicClient, Client, layout, replay

SILENT = GroupSettings(GROUP, consume_enable=False)


def commit(on: Bench, group: str = GROUP, queue_id: int = 0) -> None:
    on.c.legacy.update_offset(99, (group, TOPIC, queue_id), 5, on.now_ms)


def delete(on: Bench, group: str = GROUP) -> int | None:
    return on.c.admin.delete_group(group, with_progress=True)


def known() -> Bench:
    """A group with settings, with progress in two queues, with a lock that is free."""
    on = Bench()
    on.c.admin.set_settings(SILENT)
    commit(on, queue_id=0)
    commit(on, queue_id=1)
    a = Client(on, "a")
    a.connect()
    a.lock(0)
    a.leave()
    a.close()
    on.advance(60_000)
    on.flush()
    return on


def test_all_that_is_known_goes_in_one_change_and_stays_gone_after_a_restart() -> None:
    on = known()
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
    a = Client(on, "a")
    a.connect()
    assert a.lock(0)[0].verdict is LockVerdict.OK
    assert a.pull(0) is True, "its settings are gone: it may consume"


def test_a_deletion_that_is_applied_to_a_snapshot_that_holds_it_changes_nothing() -> None:
    on = known()
    delete(on)
    on.flush()
    kept = on.c.snapshot()
    again = replay(on)
    again.apply(("group.forgotten", GROUP))
    assert again.snapshot() == kept


def test_groups_with_settings_make_room_when_they_are_deleted() -> None:
    """They are never forgotten: so many requests took every group's place for good."""
    on = Bench(config=replace(CONFIG, groups_max=2))
    for number in range(2):
        on.c.admin.set_settings(GroupSettings(f"g{number}"))
    with pytest.raises(NoPermissionError, match="`lockstep group delete` removes one"):
        commit(on, "new")
    assert delete(on, "g0") == 0
    commit(on, "new")
    assert on.c.status.groups() == ("g1", "new")


def test_a_group_with_members_is_refused_and_they_are_named() -> None:
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


def test_a_group_whose_member_has_just_closed_its_connection_is_in_use_for_the_grace() -> None:
    on = Bench()
    a = Client(on, "a")
    a.connect()
    a.close()
    with pytest.raises(NoPermissionError, match="has 1 members"):
        delete(on)
    on.advance(GRACE + 1_000)
    assert delete(on) is None, "nothing was left of it"


def test_a_group_whose_queues_a_client_holds_that_is_no_member_is_refused_until_they_are_free() -> None:
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


def test_how_long_a_silent_session_keeps_a_queue_is_said_as_it_is() -> None:
    on = Bench(config=replace(CONFIG, session_timeout_ms=600_000))
    a = Client(on, "a")
    a.connect()
    a.lock(0)
    a.leave()
    on.advance(599_999, step_ms=1_000)
    with pytest.raises(
        NoPermissionError, match=r"(?s)held by clients which are not members .*: a\. They are free at the latest 600 s after"
    ):
        delete(on)
    on.advance(1)
    assert delete(on) == 4


def test_a_member_that_drains_uses_the_group() -> None:
    on = Bench()
    a = Client(on, "a")
    a.connect()
    a.lock(0)
    a.leave()
    with pytest.raises(NoPermissionError, match="not members"):
        delete(on)
    assert a.commit(0, 7, release=True) is LockVerdict.OK
    assert delete(on) == 4


def test_without_a_flag_settings_go_and_progress_stays_as_in_rocketmq() -> None:
    on = known()
    assert on.c.admin.delete_group(GROUP, with_progress=False) == 0
    assert len(on.journal) == 1
    assert (on.c.status.groups(), len(on.c.state.progress), len(on.c.state.settings)) == ((GROUP,), 4, 0)
    on.restart()
    assert (on.c.status.groups(), len(on.c.state.progress), len(on.c.state.settings)) == ((GROUP,), 4, 0)
    on.c.admin.set_settings(GroupSettings("only-settings"))
    on.c.admin.delete_group("only-settings", with_progress=False)
    assert on.c.status.groups() == (GROUP,)


@pytest.mark.parametrize("with_progress", [True, False])
def test_a_group_that_is_not_known_is_deleted_without_a_change(with_progress: bool) -> None:
    on = Bench()
    assert on.c.admin.delete_group("unknown", with_progress=with_progress) is None
    assert len(on.journal) == 0
    with pytest.raises(LocalProtocolError, match="group is blank"):
        on.c.admin.delete_group("", with_progress=with_progress)


def test_a_group_is_deleted_although_its_topics_are_here() -> None:
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
def test_a_classic_tools_request_is_understood_and_its_answer_waits_for_the_log(fields: dict[str, bool], progress_count: int) -> None:
    on = Bench()
    on.c.admin.set_settings(SILENT)
    commit(on)
    store, endpoint = FakeStore(), FakeEndpoint()
    store.confirm_now = False
    dispatcher = Dispatcher([StatusProcessor(on.c, lambda: cast(BrokerStatus, None))], cast(Store, store))
    dispatcher(Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, 7, fields={"groupName": GROUP, **fields}), endpoint)  # type: ignore[arg-type]
    assert endpoint.take() == []
    store.waiting.pop()()
    (answer,) = endpoint.take()
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert (len(on.c.state.progress), len(on.c.state.settings)) == (progress_count, 0)
    store.confirm_now = True
    dispatcher(request(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("unknown", clean_offset=True)), endpoint)  # type: ignore[arg-type]
    assert endpoint.take()[0].code == ResponseCode.SUCCESS
