"""The steps of docs/security.md that close a running cluster, while it sends and consumes in order."""

import asyncio
import re
from pathlib import Path

import pytest

from support.certificates import write_authority, write_certificate
from support.cluster import Cluster
from support.http import fetch
from support.logins import PASSWORD, write_users

pytestmark = pytest.mark.e2e

SERVERS = ("nameserver", "broker-a", "broker-b")
RULES = {
    "broker": 'brokers = ["broker-*"]',
    "shop": 'role = "producer"\ntopics = ["orders"]',
    "billing": 'role = "consumer"\ntopics = ["orders"]\ngroups = ["billing"]',
    "ops": "super = true",
}


class Closing:
    """A cluster whose servers are started again one after the other, with other options."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.admin: dict[str, str] = {}
        cert, key = write_certificate(directory)
        (directory / "password").write_text(PASSWORD)
        users = write_users(directory / "users.toml", {name: [PASSWORD] for name in RULES}, RULES)
        self.secured = ("--tls-cert", cert, "--tls-key", key, "--security", users)
        self.parameters = f"tls_ca={write_authority(directory / 'ca.pem')}&password_file={directory / 'password'}"

    def as_user(self, user: str) -> None:
        """Let what is started from now on log in, by TLS."""
        self.cluster.user, self.cluster.parameters = user, self.parameters

    async def restart(self, *options: str, brokers_only: bool = False) -> None:
        """Start the servers again one after the other, with these options and an admin port."""
        cluster = self.cluster
        cluster.server_options = ("--admin-listen", "127.0.0.1:0", *options)
        for name in SERVERS[1:] if brokers_only else SERVERS:
            await cluster.stop(name)
            if name == "nameserver":
                await cluster.nameserver(listen=cluster.addresses[name])
            else:
                await cluster.broker(name, listen=cluster.addresses[name])
            started = await cluster.processes[name].wait_for_event(f"{name.partition('-')[0]}.started")
            self.admin[name] = started["admin"]

    async def count(self, metric: str) -> float:
        """Return the sum of a metric at all servers."""
        pages = [await fetch(address, "/metrics") for address in self.admin.values()]
        return sum(float(value) for _, page in pages for value in re.findall(rf"^{metric}\S* (\S+)$", page, re.MULTILINE))

    async def until_none(self, metric: str) -> None:
        """Wait until a metric is 0 at all servers: until then somebody has not been switched over."""
        async with asyncio.timeout(60):
            while await self.count(metric):
                pass


async def test_running_cluster_is_closed_in_the_steps_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    closing = Closing(cluster, tmp_path)
    await cluster.servers()
    for name in ("consumer-1", "consumer-2"):
        await cluster.consumer(name)
    await cluster.until_held(8, "consumer-1", "consumer-2")
    await cluster.producer("producer", "--keys", "30")
    await cluster.until_handled(100)

    await closing.restart("--tls", "allow", *closing.secured, "--users", "optional")
    await cluster.until_handled(100)
    assert await closing.count("lockstep_plain_connections") > 0
    closing.as_user("broker")
    await closing.restart("--tls", "allow", *closing.secured, "--users", "optional", brokers_only=True)

    closing.as_user("billing")
    for before, after in (("consumer-1", "consumer-3"), ("consumer-2", "consumer-4")):
        await cluster.consumer(after)
        await cluster.stop(before)
    await cluster.until_held(8, "consumer-3", "consumer-4")
    assert await closing.count("lockstep_anonymous_connections") > 0, "the producer has not been switched over"
    await cluster.finish_producer()
    closing.as_user("shop")
    await cluster.producer("producer-2", "--first", "30", "--keys", "30")
    await cluster.until_handled(100)
    await closing.until_none("lockstep_anonymous_connections")
    await closing.until_none("lockstep_plain_connections")

    closing.as_user("broker")
    await closing.restart("--tls", "require", *closing.secured)
    await cluster.until_handled(100)
    closing.as_user("ops")
    assert "orders" in await cluster.command("topic", "list")
    cluster.user, cluster.parameters = "", ""
    assert "requires TLS: connect with TLS" in " ".join((await cluster.command("topic", "list", code=1)).split())
    closing.as_user("ops")
    await cluster.finish_producer("producer-2")
    await cluster.prove("consumer-3", "consumer-4")
