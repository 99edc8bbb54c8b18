"""The settings of all servers on one page over a simulated cluster."""

import re

from lockstep.broker.config import BrokerConfig
from lockstep.nameserver.config import NameserverConfig
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.settings_query import OWN, SettingRow
from lockstep.protocol.bodies import BrokerSetting
from lockstep.runtime.configuration.settings import declared_settings
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, shown

URL = "/settings"


async def change(cluster: TestCluster, broker: str, **values: str) -> None:
    admin = AdminClient(Host.current(), cluster.nameserver)
    (found,) = [each for each in await admin.brokers() if each.name == broker]
    await admin.change_settings(found, values)


async def test_every_setting_of_every_server_is_shown_with_its_origin(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with dashboard(cluster) as on:
        page = checked(await get(on.app, URL))
        assert f"Setting broker-a broker-b nameserver {cluster.nameserver} Remark" in page.text
        for name in declared_settings(BrokerConfig).keys() | declared_settings(NameserverConfig).keys():
            assert f" {name} " in page.text
        assert "retention_hours 72 default 72 default –" in page.text
        assert "log_mib_max none default none default –" in page.text
        assert re.search(r"connections_max (\d+) default \1 default \1 default ", page.text), "nameservers have it too"
        assert "differ" not in page.text
        assert URL in checked(await get(on.app, "/")).links


async def test_what_differs_between_brokers_is_marked_and_what_must_differ_is_not(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with dashboard(cluster) as on:
        await change(cluster, "broker-b", retention_hours="24")
        got = await get(on.app, URL)
        page = checked(got)
        assert "Settings that differ between brokers: retention_hours" in page.text
        assert "retention_hours 72 default 24 set at run time – brokers differ" in page.text
        assert got.text.count('<tr class="bad">') == 1
        await change(cluster, "broker-a", retention_hours="24")
        await cluster.advance(seconds=3)
        assert "differ" not in await shown(on, URL)


async def test_settings_are_filtered_by_name(lockstep_cluster: TestCluster) -> None:
    async with dashboard(lockstep_cluster) as on:
        text = await shown(on, f"{URL}?q=Group-idle")
        assert "group_idle_days 30" in text
        assert "retention_hours" not in text
        assert "No setting has <b> in its name" in await shown(on, f"{URL}?q=<b>")


async def test_server_that_does_not_respond_is_named(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with dashboard(cluster) as on:
        await cluster.pause("broker-b")
        text = await shown(on, URL)
        assert "broker-b is left out" in text
        assert "Setting broker-a nameserver" in text
        assert "differ" not in text
        await cluster.resume("broker-b")
        await cluster.kill("nameserver-1")
        await cluster.advance(seconds=60)  # the last answer took long, so it is not requested again for a while
        text = await shown(on, URL)
        assert "no nameserver responds" in text
        assert "What follows is older" in text


def setting(name: str, value: str | None) -> BrokerSetting:
    return BrokerSetting(name, "default", "default", value)


def test_settings_of_a_place_never_differ_and_others_do_if_a_value_does() -> None:
    assert declared_settings(BrokerConfig).keys() >= OWN
    for name, one, other, differs in (
        ("store", '"a"', '"b"', False),
        ("topics_max", "1", "1", False),
        ("topics_max", "1", None, True),
    ):
        row = SettingRow(name, {"a": setting(name, one), "b": setting(name, other)}, {"n": setting(name, "7")})
        assert row.differs is differs
    assert not SettingRow("topics_max", {"a": setting("topics_max", "1")}, {}).differs
