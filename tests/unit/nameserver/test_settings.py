"""A nameserver reports its settings, and where each value comes from."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.settings import FIXED
from lockstep.protocol.bodies import BrokerSetting, BrokerSettings
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import JSON, Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.admin import SettingsHeader
from lockstep.runtime.configuration.reported_settings import SET
from lockstep.runtime.configuration.settings import declared_settings
from lockstep.runtime.connections.dial import call, connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.logs import log
from lockstep.runtime.requests import login
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.users import watch_users
from lockstep.runtime.security.watched_files import SETTLE_MS
from support.access_keys import SECRET, signed, write_signers
from support.java_wire import JavaWire, java_wire
from support.logins import logging_in


async def test_settings_are_reported_with_their_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "level", lambda: "debug")  # by the admin port
    config, host = NameserverConfig(listen=("127.0.0.1:0",), connections_max=77), Host.real()
    served = Nameserver(config, host, {"connections_max": "flag --connections-max"})
    await served.start()
    try:
        response = await call(host, served.address, RequestCode.GET_NAMESRV_CONFIG, timeout_ms=5_000)
    finally:
        await served.stop()
    assert response.code == ResponseCode.SUCCESS
    found = {each.name: each for each in decode_body(BrokerSettings, response.body).settings}
    assert list(found) == list(declared_settings(NameserverConfig))
    assert found["connections_max"] == BrokerSetting("connections_max", *["flag --connections-max"] * 2, "77", "77", FIXED)
    assert found["listen"] == BrokerSetting("listen", *["the program that made the server"] * 2, *['["127.0.0.1:0"]'] * 2, FIXED)
    assert found["admin_listen"] == BrokerSetting("admin_listen", "default", "default", None, None, FIXED)
    assert found["log_level"] == BrokerSetting("log_level", SET, "default", '"debug"', '"info"', FIXED)


async def test_last_logins_are_reported_by_user_and_kind_to_who_asks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"viewer": 'role = "viewer"', "shop": 'allow = ["Get topic:*"]', "gone": "super = true"}
    users = watch_users(write_signers(tmp_path / "users.toml", dict.fromkeys(rules, SECRET), rules))
    served = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real(), security=ServerSecurity(users=users))
    await served.start()

    async def ask(endpoint: Endpoint, *, logins: bool = True) -> Command:
        return await endpoint.request(RequestCode.GET_NAMESRV_CONFIG, to_plain(SettingsHeader(logins)), timeout_ms=5_000)

    async def sign(java: JavaWire, user: str) -> str:
        reply = await java.call(RequestCode.GET_TOPICS_BY_CLUSTER, signed({"cluster": "c"}, key=user, secret=SECRET))
        assert reply.code == ResponseCode.SUCCESS
        return ":".join(map(str, java.writer.get_extra_info("sockname")))

    async with AsyncExitStack() as connections:
        connections.push_async_callback(served.stop)
        java, again = [await connections.enter_async_context(java_wire(served.address, JSON)) for _ in range(2)]
        shop = await connect(Host.real(), served.address, security=logging_in("shop"))
        assert (await ask(shop)).code == ResponseCode.NO_PERMISSION
        near, *_ = [await sign(java, user) for user in ("shop", "shop", "gone")]
        monkeypatch.setattr(login, "is_loopback", lambda _: False)
        far = await sign(again, "shop")
        write_signers(tmp_path / "users.toml", {"viewer": SECRET, "shop": SECRET}, rules)
        users.look(0)
        viewer = await connect(Host.real(), served.address, security=logging_in("viewer"))
        found = decode_body(BrokerSettings, (await ask(viewer)).body).logins or ()
        without = decode_body(BrokerSettings, (await ask(viewer, logins=False)).body)
        assert (without.logins, without.reload_failure) == (None, None)
        (tmp_path / "users.toml").unlink()
        for now_ms in (0, SETTLE_MS):
            users.look(now_ms)
        failed = decode_body(BrokerSettings, (await ask(viewer)).body).reload_failure
        assert failed == f"{tmp_path / 'users.toml'}: no such file or directory"
    assert [(each.user, each.signed, each.exposed, each.connections) for each in found] == [
        ("shop", False, False, 3),
        ("shop", True, False, 3),
        ("shop", True, True, 3),
        ("viewer", False, True, 1),
    ]
    assert [each.peer for each in found[1:3]] == [near, far]
    assert [each.wall_ms for each in found] == sorted(each.wall_ms for each in found)
