"""A nameserver reports its settings, and where each value comes from."""

import pytest

from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.settings import FIXED
from lockstep.protocol.bodies import BrokerSetting, BrokerSettings
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.runtime.configuration.reported_settings import SET
from lockstep.runtime.configuration.settings import declared_settings
from lockstep.runtime.connections.dial import call
from lockstep.runtime.host import Host
from lockstep.runtime.logs import log


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
