"""What a broker does for users with rights: messages, memberships and names of others, and rights that change meanwhile."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.processors.status import status_for
from lockstep.protocol.bodies import (
    BrokerStatus,
    ConsumerGroup,
    GroupEvents,
    GroupStatusReply,
    HeartbeatBody,
    LockItem,
    LockVerdict,
    Overview,
    ParkAction,
    ParkControlBody,
    Subscription,
    SyncBody,
    SyncItem,
    SyncReply,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.headers.clients import GroupEventsHeader, GroupStatusHeader
from lockstep.protocol.headers.offsets import QueryMessageHeader, QueueHeader, ViewMessageHeader
from lockstep.protocol.headers.pull import SUSPEND
from lockstep.protocol.headers.send import SendBackHeader, SendMessageHeader
from lockstep.protocol.messages.record import split_records
from lockstep.runtime.security.authenticated_user import ANYBODY, RequestUser
from lockstep.runtime.security.rights import Action, Kind
from support.logins import PASSWORD, logging_in, write_users
from support.whole_broker import TOPIC, Client, dialled, frame, heartbeat, join, place, reconcile, running, settings

RULES = {
    "ops": "super = true",
    "shop": f'role = "producer"\ntopics = ["{TOPIC}"]',
    "rival": f'role = "producer"\ntopics = ["{TOPIC}"]',
    "billing": f'role = "consumer"\ntopics = ["{TOPIC}"]\ngroups = ["g"]',
    "twin": f'role = "consumer"\ntopics = ["{TOPIC}"]\ngroups = ["g"]',
    "other": 'role = "consumer"\ntopics = ["other"]\ngroups = ["other"]',
    "watcher": 'role = "viewer"\ntopics = ["other"]\ngroups = ["other"]',
}
SESSION = "5" * 32
DENIED = ResponseCode.NO_PERMISSION


@dataclass
class House:
    """A broker with users, whose rights a test may change."""

    broker: Broker
    path: Path
    stack: AsyncExitStack

    async def as_user(self, name: str) -> Client:
        return await self.stack.enter_async_context(dialled(self.broker, logging_in(name)))

    def change(self, **rules: str) -> None:
        """Change the rights of users, as if the broker had looked at the file now."""
        write_users(self.path, {name: [PASSWORD] for name in RULES}, {**RULES, **rules})
        assert self.broker._security.users is not None
        assert self.broker._security.users.look(0)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    path = tmp_path / "users.toml"
    write_users(path, {name: [PASSWORD] for name in RULES}, RULES)
    async with running(settings(tmp_path, security=str(path), auto_create_topics=True)) as broker, AsyncExitStack() as stack:
        found = House(broker, path, stack)
        await (await found.as_user("ops")).create()
        yield found


async def send(client: Client, first: int = 0, crc: int = 0) -> Command:
    header, body, _ = frame(first, 1, crc=crc)
    return await client.send_request(RequestCode.SEND_RECORDS, header, body)


def heartbeat_body(client_id: str, *groups: str, session: str = SESSION, connection: int = 1) -> bytes:
    consumers = tuple(ConsumerGroup(group, (Subscription(TOPIC),), ordered=True) for group in groups)
    return encode_body(HeartbeatBody(client_id, consumers, session=session, connection=connection))


async def test_message_that_is_named_by_its_log_offset_needs_the_right_in_its_topic(house: House) -> None:
    stored = place(await send(await house.as_user("shop")))
    view, back = ViewMessageHeader(stored.physical_offset), SendBackHeader(stored.physical_offset, "other")
    for user, code, header, expected in [
        ("billing", RequestCode.VIEW_MESSAGE_BY_ID, view, ResponseCode.SUCCESS),
        ("other", RequestCode.VIEW_MESSAGE_BY_ID, view, DENIED),
        ("shop", RequestCode.VIEW_MESSAGE_BY_ID, view, DENIED),
        ("other", RequestCode.CONSUMER_SEND_MSG_BACK, back, DENIED),
        ("billing", RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(stored.physical_offset, "g"), ResponseCode.SUCCESS),
    ]:
        response = await (await house.as_user(user)).send_request(code, header)
        assert response.code == expected, (user, code, response.remark)
        assert TOPIC not in (response.remark or ""), "the name of the topic is not told"


async def test_search_in_all_topics_finds_messages_of_those_that_the_user_may_read(house: House) -> None:
    """Also a message that waits for its delay belongs to the topic to which it will go."""
    shop = await house.as_user("shop")
    for properties in ("KEYS\x01k", "KEYS\x01k\x02DELAY\x013"):
        await shop.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties=properties), b"x")
    house.change(watcher=f'allow = ["Get topic:*"]\ndeny = ["Get topic:{TOPIC}"]')
    for user, expected in [("ops", 2), ("billing", 2), ("watcher", 0), ("other", 0)]:
        header = QueryMessageHeader(None, "k", waiting=True)
        found = await (await house.as_user(user)).done(RequestCode.QUERY_MESSAGE, header)
        assert len(list(split_records(found.body))) == expected, user


async def test_first_send_creates_a_topic_for_who_may_create_it(house: House) -> None:
    header = SendMessageHeader("p", "new", 0)
    house.change(shop='allow = ["Pub topic:new"]')
    shop = await house.as_user("shop")
    response = await shop.send_request(RequestCode.SEND_MESSAGE, header, b"x")
    assert (response.code, (response.remark or "").split(" (")[0]) == (DENIED, "user shop may not Create topic:new")
    house.change(shop='allow = ["Pub,Create topic:new"]')
    await shop.done(RequestCode.SEND_MESSAGE, header, b"x")


async def test_reply_needs_the_right_to_send_to_the_reply_topic_of_the_cluster(house: House) -> None:
    billing = await house.as_user("billing")
    header = SendMessageHeader("g", "DefaultCluster_REPLY_TOPIC", 0, properties="REPLY_TO_CLIENT\x01c\x02CORRELATION_ID\x011")
    response = await billing.send_request(RequestCode.SEND_REPLY_MESSAGE, header, b"x")
    may_not = "user billing may not Pub topic:DefaultCluster_REPLY_TOPIC"
    assert (response.code, (response.remark or "").split(" (")[0]) == (DENIED, may_not)
    house.change(billing=f'role = "consumer"\ntopics = ["{TOPIC}"]\ngroups = ["g"]\nallow = ["Pub topic:DefaultCluster_REPLY_TOPIC"]')
    response = await billing.send_request(RequestCode.SEND_REPLY_MESSAGE, header, b"x")
    assert "no producer with the client id c is connected" in (response.remark or "")


async def test_lost_rights_end_pulls_and_membership_and_queues_move_when_the_member_knows(house: House) -> None:
    billing, twin = await house.as_user("billing"), await house.as_user("twin")
    epoch = await join(billing, "c1", SESSION)
    held = billing.pull(sys_flag=SUSPEND, suspend_timeout_millis=30_000, epoch=epoch)
    await billing.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
    assert not held.done()
    await heartbeat(twin, "c2", "6" * 32)
    house.change(billing='role = "consumer"\ntopics = ["other"]\ngroups = ["g"]')
    await send(await house.as_user("shop"))
    ended = await held
    assert (ended.code, (ended.remark or "").split(" (")[0]) == (DENIED, f"user billing may not Sub topic:{TOPIC}")
    reply = await billing.done(RequestCode.SYNC, body=encode_body(SyncBody((SyncItem("g", TOPIC, 0, epoch, 1),))))
    (result,) = decode_body(SyncReply, reply.body).items
    assert result.verdict is LockVerdict.STALE
    assert "group g is not for this user: user billing may not Sub" in (result.remark or "")
    assert (await reconcile(twin, LockItem("g", TOPIC, 0))).verdict is LockVerdict.HELD, "a listener may run until its client knows"
    assert (await reconcile(billing, LockItem("g", TOPIC, 0, epoch))).verdict is LockVerdict.STALE
    assert (await reconcile(twin, LockItem("g", TOPIC, 0))).verdict is LockVerdict.HELD, "the response may be lost"
    refused = await reconcile(billing, LockItem("g", TOPIC, 0))
    assert (refused.verdict, "may not Sub" in refused.remark) == (LockVerdict.REFUSED, True)
    granted = await reconcile(twin, LockItem("g", TOPIC, 0))
    assert (granted.verdict, granted.offset) == (LockVerdict.OK, 0), "the commit was not taken"


async def test_heartbeat_joins_the_groups_that_the_user_may_consume_and_names_the_other(house: House) -> None:
    house.change(billing=f'role = "consumer"\ntopics = ["{TOPIC}"]\ngroups = ["mine"]')
    billing = await house.as_user("billing")
    response = await billing.send_request(RequestCode.HEART_BEAT, body=heartbeat_body("c1", "g", "mine"))
    assert response.code == DENIED
    assert "group g is not for this user: user billing may not Sub group:g" in (response.remark or "")
    assert response.fields["retryAfterMs"] == 30_000
    status = await (await house.as_user("ops")).done(RequestCode.GROUP_STATUS, GroupStatusHeader("mine"))
    found = decode_body(GroupStatusReply, status.body).status
    assert found is not None
    assert [member.client_id for member in found.members] == ["c1"]


async def test_session_and_its_client_id_belong_to_the_user_also_after_a_restart(house: House, tmp_path: Path) -> None:
    billing = await house.as_user("billing")
    epoch = await join(billing, "c1", SESSION)
    twin = await house.as_user("twin")
    taken = await twin.send_request(RequestCode.HEART_BEAT, body=heartbeat_body("c1", "g", session="7" * 32, connection=2))
    assert taken.code == ResponseCode.DUPLICATE_CLIENT_ID
    await house.stack.aclose()
    await house.broker.stop()
    async with (
        running(settings(tmp_path, security=str(house.path))) as broker,
        dialled(broker, logging_in("twin")) as twin,
        dialled(broker, logging_in("billing")) as billing,
    ):
        bodies = [heartbeat_body("c1", "g", session=session, connection=9) for session in (SESSION, "7" * 32)]
        for body in (*bodies, encode_body(HeartbeatBody("c1"))):
            taken = await twin.send_request(RequestCode.HEART_BEAT, body=body)
            assert taken.code == ResponseCode.DUPLICATE_CLIENT_ID
        await heartbeat(billing, "c1", SESSION, connection=2)
        assert (await reconcile(billing, LockItem("g", TOPIC, 0, epoch))).verdict is LockVerdict.OK


async def test_session_that_began_without_a_login_belongs_to_the_first_user_who_binds_it(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as open_broker, dialled(open_broker) as client:
        await client.create()
        epoch = await join(client, "c1", SESSION)
    path = write_users(tmp_path / "users.toml", {name: [PASSWORD] for name in RULES}, RULES)
    async with running(settings(tmp_path, security=path)) as broker, dialled(broker, logging_in("twin")) as twin:
        async with dialled(broker, logging_in("billing")) as billing:
            await heartbeat(billing, "c1", SESSION, connection=2)
            assert (await reconcile(billing, LockItem("g", TOPIC, 0, epoch))).verdict is LockVerdict.OK
            taken = await twin.send_request(RequestCode.HEART_BEAT, body=heartbeat_body("c1", "g", session=SESSION, connection=3))
            assert taken.code == ResponseCode.DUPLICATE_CLIENT_ID
        taken = await twin.send_request(RequestCode.HEART_BEAT, body=heartbeat_body("c1", "g", session=SESSION, connection=4))
        assert taken.code == ResponseCode.DUPLICATE_CLIENT_ID, "also while its connection is lost"


async def test_producer_id_belongs_to_the_user_who_sends_under_it(house: House) -> None:
    shop, rival = await house.as_user("shop"), await house.as_user("rival")
    assert (await send(shop)).code == ResponseCode.SUCCESS
    response = await send(rival)
    assert (response.code, (response.remark or "").split(":")[0]) == (DENIED, f"producer id {'ab' * 16} is in use by another user")


async def test_lists_have_the_names_that_the_user_may_see(house: House) -> None:
    await join(await house.as_user("billing"), "c1", SESSION)
    await send(await house.as_user("shop"))
    for user, group_names, topic_names in [("ops", ["g"], [TOPIC]), ("watcher", [], [])]:
        client = await house.as_user(user)
        groups = decode_body(GroupStatusReply, (await client.done(RequestCode.GROUP_STATUS, GroupStatusHeader())).body)
        overview = decode_body(Overview, (await client.done(RequestCode.OVERVIEW)).body)
        events = decode_body(GroupEvents, (await client.done(RequestCode.GROUP_EVENTS, GroupEventsHeader())).body)
        parked = await client.done(RequestCode.PARK_CONTROL, body=encode_body(ParkControlBody(ParkAction.LIST)))
        assert list(groups.groups) == group_names
        assert [each.topic for each in overview.topics] == topic_names
        assert [each.group for each in overview.groups] == group_names
        assert {each.group for each in events.events} == set(group_names)
        assert parked.code == ResponseCode.SUCCESS


def test_status_names_only_topics_that_the_user_sees() -> None:
    status = BrokerStatus("broker-a", "c", "00", 1, {}, 0, 0, 0, 0, 0, 0, (), 1, 0, 0, 0, 1, 0, None, {TOPIC: 1, "other": 2, "": 3})

    class Watcher(RequestUser):
        def may(self, actions: Sequence[Action], kind: Kind, name: str) -> bool:
            return name == "other"

    assert status_for(ANYBODY, status) == status
    assert status_for(Watcher(), status).deferred_timers == {"other": 2, "": 3}
