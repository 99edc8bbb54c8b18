"""The audit: what it has of logins, refusals and changes, what it never has, and a file that is moved, full or gone."""

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import ChangeSettings, GroupSettings, ParkAction, ParkControlBody, SyncBody, SyncItem
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import AuthenticationError, ConfigError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.offsets import QueueHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.logs.audit_file import AuditFile
from lockstep.runtime.logs.log_limit import EVENTS_MAX
from lockstep.runtime.requests import login
from lockstep.runtime.requests.audit import AuditFacts, RequestAudit
from lockstep.runtime.requests.request import Request
from lockstep.runtime.security.authenticated_user import AccessDeniedError, RequestUser
from support.logins import PASSWORD, logging_in, write_users
from support.whole_broker import TOPIC, dialled, frame, heartbeat, running, settings


class UserNamed(RequestUser):
    def __init__(self, name: str) -> None:
        self.name = name


RULES = {
    "ops": "super = true",
    "shop": f'role = "producer"\ntopics = ["{TOPIC}"]\nallow = ["Create topic:new", "Pub topic:new"]',
    "billing": f'role = "consumer"\ntopics = ["{TOPIC}"]\ngroups = ["g"]',
}
CHANGES = {
    "broker": "UPDATE_AND_CREATE_TOPIC UPDATE_AND_CREATE_TOPIC_LIST UPDATE_BROKER_CONFIG UPDATE_AND_CREATE_SUBSCRIPTIONGROUP "
    "DELETE_SUBSCRIPTIONGROUP DELETE_TOPIC_IN_BROKER INVOKE_BROKER_TO_RESET_OFFSET UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST "
    "CLEAN_EXPIRED_CONSUMEQUEUE CONSUME_MESSAGE_DIRECTLY CLONE_GROUP_OFFSET CLEAN_UNUSED_TOPIC DELETE_EXPIRED_COMMITLOG RESET_OFFSETS "
    "FORGET_DELETIONS HOLD_WRITES FORGET_PROGRESS PURGE_TOPIC REPLICA_FORGET REPLICA_HAND_OVER "
    "REPLICA_PROMOTE",
    "nameserver": "PUT_KV_CONFIG DELETE_KV_CONFIG WIPE_WRITE_PERM_OF_BROKER DELETE_TOPIC_IN_NAMESRV UPDATE_NAMESRV_CONFIG "
    "ADD_WRITE_PERM_OF_BROKER FORGET_DELETIONS",
}
"""The requests of which the audit has each. PARK_CONTROL, registrations and sends that create a topic are noted by their handlers."""


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "FAILED_S", 0.0)


def audited(path: Path, **values: Any) -> Any:
    users = write_users(path / "users.toml", {name: [PASSWORD] for name in RULES}, RULES)
    return settings(path, security=users, audit=str(path / "audit"), auto_create_topics=True, **values)


async def test_each_request_that_changes_something_is_declared_so(tmp_path: Path) -> None:
    nameserver = Nameserver(NameserverConfig(), Host.real())
    async with running(settings(tmp_path)) as broker:
        found = {"broker": broker.running.dispatcher, "nameserver": nameserver._dispatcher}
        for server, dispatcher in found.items():
            specs = [*dispatcher.specs(native=True).items(), *dispatcher.specs(native=False).items()]
            changing = {RequestCode(code).name for code, spec in specs if any(need.changes for need in spec.needs)}
            assert changing == set(CHANGES[server].split())


async def test_audit_has_logins_changes_with_before_and_after_and_refusals(tmp_path: Path) -> None:
    async with running(audited(tmp_path)) as broker:
        for name, password in (("ops", "wrong password"), ("nobody", PASSWORD)):
            with pytest.raises(AuthenticationError):
                async with dialled(broker, logging_in(name, password)):
                    pass
        async with dialled(broker, logging_in("ops")) as ops:
            await ops.create()
            await ops.send_request(RequestCode.UPDATE_BROKER_CONFIG, body=encode_body(ChangeSettings({"retention_hours": "5"})))
            await ops.send_request(RequestCode.UPDATE_BROKER_CONFIG, body=encode_body(ChangeSettings({"store": "elsewhere"})))
            await ops.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(GroupSettings("g")))
            await ops.done(RequestCode.PARK_CONTROL, body=encode_body(ParkControlBody(ParkAction.LIST)))
            await ops.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
        async with dialled(broker, logging_in("shop")) as shop:
            header, body, _ = frame(0, 1)
            await shop.done(RequestCode.SEND_RECORDS, header, body)
            await shop.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", "new", 0), b"a secret body")
            shop.endpoint.oneway(RequestCode.UPDATE_AND_CREATE_TOPIC, to_plain(CreateTopicHeader("other")))
            await shop.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("other"))
            for _ in range(EVENTS_MAX + 5):
                await shop.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("p", "payments", 0), b"a secret body")
        metrics = (await broker.running.render_metrics()).decode()
    events = read(tmp_path / "audit")
    assert all(each["server"] == "broker-a" and each["time"].startswith("20") for each in events)
    assert all("127.0.0.1:" in each["peer"] for each in events if each["event"] != "left_out")
    story = [(each["event"], each["user"], each.get("request"), each.get("resource"), each["outcome"]) for each in events[: 2 - EVENTS_MAX]]
    denied = ("change", "shop", "UPDATE_AND_CREATE_TOPIC", "topic:other", "denied")
    assert story == [
        ("login", "ops", None, None, "failed"),
        ("login", None, None, None, "failed"),
        ("login", "ops", None, None, "done"),
        ("change", "ops", "UPDATE_AND_CREATE_TOPIC", "topic:orders", "done"),
        ("change", "ops", "UPDATE_BROKER_CONFIG", "cluster", "done"),
        ("change", "ops", "UPDATE_BROKER_CONFIG", "cluster", "failed"),
        ("change", "ops", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "group:g", "done"),
        ("login", "shop", None, None, "done"),
        ("change", "shop", "SEND_MESSAGE", "topic:new", "done"),
        denied,
        denied,
    ]
    assert events[4]["before"] == {"retention_hours": "72"}
    assert events[4]["after"] == {"retention_hours": "5"}
    assert "before" not in events[3]
    assert events[3]["after"] == {"counter": 1, "brokers": 1, "read": 4, "write": 4, "deleted": False}
    refusals = [each for each in events if each["event"] == "request"]
    assert {(each["request"], each["resource"], each["outcome"]) for each in refusals} == {("SEND_MESSAGE", "topic:payments", "denied")}
    assert len(refusals) == EVENTS_MAX - 2
    text = (tmp_path / "audit").read_text()
    assert not [secret for secret in ("secret body", PASSWORD, "wrong password", "SCRAM") if secret in text]
    for line in ("logins_failed_total{", 'user="ops"} 1.0', f'user="shop"}} {EVENTS_MAX + 7}.0', "lockstep_audit_dropped_total{"):
        assert line in metrics


async def test_refusal_that_a_part_of_a_response_has_is_audited_too(tmp_path: Path) -> None:
    async with running(audited(tmp_path)) as broker, dialled(broker, logging_in("ops")) as ops:
        await ops.create()
        async with dialled(broker, logging_in("billing")) as billing:
            await heartbeat(billing, "c1", "5" * 32)
            await billing.done(RequestCode.SYNC, body=encode_body(SyncBody((SyncItem("other", TOPIC, 0, 1, 1),))))
    found = [(each["request"], each["user"], each["resource"]) for each in read(tmp_path / "audit") if each["event"] == "request"]
    assert found == [("SYNC", "billing", "group:other")]


@pytest.mark.simulated
async def test_number_of_refusals_that_were_left_out_is_told_for_each_user() -> None:
    events: list[AuditFacts] = []
    audit = RequestAudit("broker-a", lambda facts: events.append(facts) is None)
    endpoint = Endpoint(Host.current(), None)
    for user, count in (("shop", EVENTS_MAX + 3), ("billing", 2)):
        for _ in range(count):
            request = Request(Command(RequestCode.PULL_MESSAGE, 1), endpoint)
            request.user = UserNamed(user)
            audit.failed(request, AccessDeniedError("no"))
    assert len(events) == EVENTS_MAX + 2
    await asyncio.sleep(2)
    assert events[-1] == {"event": "left_out", "server": "broker-a", "user": "shop", "count": 3}


def test_server_without_users_has_no_audit_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert Broker(settings(tmp_path), Host.real())._audit._write is None
    assert Broker(settings(tmp_path, audit="stdout"), Host.real())._audit._write is not None
    users = write_users(tmp_path / "users.toml", {"ops": [PASSWORD]})
    assert Broker(settings(tmp_path, security=users, audit="off"), Host.real())._audit._write is None
    assert Broker(settings(tmp_path), Host.real()).on_hangup is None
    assert Broker(settings(tmp_path, audit=str(tmp_path / "audit")), Host.real()).on_hangup is not None
    with pytest.raises(ConfigError, match=r"audit .*: is a directory"):
        Broker(settings(tmp_path, audit=str(tmp_path)), Host.real())


async def test_audit_without_a_file_is_in_the_log_whatever_its_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = write_users(tmp_path / "users.toml", {"ops": [PASSWORD]})
    caplog.set_level("ERROR", "lockstep")
    caplog.handler.setLevel("NOTSET")
    async with running(settings(tmp_path, security=users)) as broker, dialled(broker, logging_in("ops")) as ops:
        await ops.create()
    found = [record for record in caplog.records if record.name == "lockstep.audit"]
    assert [record.facts["request"] for record in found if record.event == "change"] == ["UPDATE_AND_CREATE_TOPIC"]  # type: ignore[attr-defined]


def test_file_that_was_moved_or_removed_is_opened_again(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit", tmp_path / "audit.1"
    file = AuditFile(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert file.append(b"1")
    path.rename(moved)
    assert file.append(b"2")
    path.write_text("")  # as logrotate's copytruncate
    assert file.append(b"3")
    path.unlink()
    file.reopen()
    assert file.append(b"4")
    assert (moved.read_text(), path.read_text()) == ("1\n", "4\n")


def test_line_that_can_not_be_written_is_dropped_and_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, write, left = tmp_path / "audit", os.write, [3]
    file = AuditFile(str(path))

    def full(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count, left[0] = left[0], 0
        return write(fd, data[:count])

    monkeypatch.setattr(os, "write", full)
    assert [file.append(b"first"), file.append(b"second")] == [False, False]
    monkeypatch.setattr(os, "write", write)
    assert file.append(b"third")
    assert path.read_text() == "fir\nthird\n"
    assert [record.getMessage().split()[0] for record in caplog.records] == ["audit.failed"]


def test_pipe_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="no such device"):
        AuditFile(str(path))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = AuditFile(str(path))
    results = [file.append(b"x" * 1_000) for _ in range(100)]
    assert (results[0], results[-1]) == (True, False)
    os.close(reader)
