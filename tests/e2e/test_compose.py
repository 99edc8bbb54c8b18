"""docker-compose.yml as its users run it: from the host and from containers, restarted and killed under load."""

import asyncio
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from support.cluster import LOOK_S, WAIT_S, Cluster, Report, now_us
from support.compose import ADMIN_PORTS, COMMAND_S, DASHBOARD_PORT, HOST_PORTS, NAMESERVERS, ROOT, Compose, compose_tool, exclusive_compose
from support.http import fetch, raw
from support.ports import is_free

yaml = pytest.importorskip("yaml")

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BROKERS = ("broker-a", "broker-b")
ALL = ("--profile", "replica", "--profile", "load")
"""The options of a command for all services."""
EXAMPLE = """
import asyncio
from lockstep.client import ConsumeOrderlyStatus, Message, Producer, PushConsumer

NAMESERVERS = "nameserver-a:9876;nameserver-b:9876"
EVENTS = [f"{key}-{step}" for key in range(4) for step in range(5)]
done = []

async def main():
    consumer = PushConsumer("inside", nameserver=NAMESERVERS)
    consumer.subscribe("orders-inside", "*")
    all_handled = asyncio.Event()

    @consumer.orderly
    async def handle(messages, context):
        done.extend(message.body.decode() for message in messages)
        if set(done) >= set(EVENTS):
            all_handled.set()
        return ConsumeOrderlyStatus.SUCCESS

    async with Producer("inside", nameserver=NAMESERVERS) as producer, consumer:
        for event in EVENTS:
            await producer.send(Message("orders-inside", event.encode(), sharding_key=event.partition("-")[0]))
        await asyncio.wait_for(all_handled.wait(), 60)

asyncio.run(main())
for event in done:
    print("handled", event)
"""


@asynccontextmanager
async def composed(folder: Path, *beside: Path, **variables: str) -> AsyncIterator[Compose]:
    """Start the cluster of the file; remove it afterwards, including volumes."""
    tool = compose_tool()
    if tool is None:
        pytest.skip("no compose tool here: install Docker, or name one with LOCKSTEP_TEST_COMPOSE")
    made = Compose(tool, "lockstep-test", folder / "compose.log", *beside, **variables)
    async with exclusive_compose():
        try:
            await made.run(*ALL, "down", "-v", code=None)  # an interrupted run leaves its own, on the same ports
            await made.run("build")
            await host_ports_free()
            await made.run("up", "-d")
            yield made
        finally:
            await made.run(*ALL, "down", "-v", code=None)


@pytest.fixture
async def compose(tmp_path: Path) -> AsyncIterator[Compose]:
    async with composed(tmp_path) as made:
        yield made


def own_address() -> str:
    """Return the address of this machine for others; resolving the route to a test network (RFC 5737) sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but 127.0.0.1")
        return str(probe.getsockname()[0])


async def host_ports_free() -> None:
    """Wait until the ports are free: another worker's test may use some, and a compose tool whose ports are taken may wait forever."""
    taken: list[int] = []

    async def free() -> bool:
        taken[:] = [port for port in HOST_PORTS if not is_free(port)]
        return not taken

    try:
        await until(free, COMMAND_S)
    except TimeoutError:
        pytest.fail(
            f"docker-compose.yml publishes {HOST_PORTS}, of which {taken} are another program's, or forwarded to containers that are gone"
        )


async def until_ready(*services: str) -> None:

    async def ready() -> bool:
        return all([await readiness(service) == 200 for service in services or ADMIN_PORTS])

    await until(ready)


async def readiness(service: str) -> int:
    try:
        return (await fetch(f"127.0.0.1:{ADMIN_PORTS[service]}", "/readyz"))[0]
    except (OSError, IndexError):
        return 0


def health_command(service: str) -> list[str]:
    """Return the health check that Docker runs in a container."""
    command: list[str]
    how, *command = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][service]["healthcheck"]["test"]
    assert how == "CMD"
    return command


async def panel(path: str) -> tuple[int, str]:
    """Return the response of the dashboard to a browser of the host."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost:{DASHBOARD_PORT}\r\nConnection: close\r\n\r\n"
    return await raw(f"127.0.0.1:{DASHBOARD_PORT}", request.encode())


async def until(true: Callable[[], Awaitable[object]], timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if await true():
                break
            await asyncio.sleep(LOOK_S)


async def term(service: str) -> float:
    """Return the term, which rises with each start of a broker."""
    _, text = await fetch(f"127.0.0.1:{ADMIN_PORTS[service]}", "/metrics")
    return float(next(line for line in text.splitlines() if line.startswith("lockstep_term")).split()[-1])


async def load(cluster: Cluster) -> None:
    """Start an ordered load from the host, over all queues."""
    await cluster.command("topic", "create", "orders", "--queues", "2")
    for name in ("consumer-1", "consumer-2"):
        await cluster.consumer(name)
    await cluster.until_held(4, "consumer-1", "consumer-2")
    await cluster.producer("producer", "--keys", "40", "--pause-ms", "50")
    await cluster.until_handled(200)


async def test_compose_cluster_serves_host_and_containers_and_survives_restarts(compose: Compose, cluster: Cluster, report: Report) -> None:
    await until_ready()
    for number, address in enumerate(NAMESERVERS.split(";")):
        cluster.addresses[f"nameserver-{number}"] = address
    outside = json.loads(await cluster.command("cluster", "--json"))["brokers"]
    assert [(broker["address"], broker["reached"]) for broker in outside] == [("127.0.0.1:10911", True), ("127.0.0.1:10921", True)]
    inside = json.loads(await compose.inside("broker-a", "lockstep", "cluster", "--nameserver", "nameserver-b:9876", "--json"))["brokers"]
    assert [(broker["address"], broker["reached"]) for broker in inside] == [("broker-a:10911", True), ("broker-b:10911", True)]
    assert (await compose.inside("broker-a", "id", "-u")).strip() == "10001", "not root"

    async def shows_brokers() -> bool:
        status, page = await panel("/")
        return status == 200 and all(f"{broker}</th>" in page for broker in BROKERS)

    await until(shows_brokers)
    await cluster.command("topic", "create", "orders-inside", "--queues", "2")
    handled = [line.split()[1] for line in (await compose.inside("broker-b", "python", "-c", EXAMPLE)).splitlines() if "handled" in line]
    assert [[event for event in handled if event.startswith(f"{key}-")] for key in range(4)] == [
        [f"{key}-{step}" for step in range(5)] for key in range(4)
    ]
    await load(cluster)
    queues = cluster.acknowledged_queues()
    assert len(queues) == 4
    before = [await term(broker) for broker in BROKERS]
    # One `restart` of everything does not wait for a service's dependencies: a compose tool may then leave that service as it is.
    await compose.run("restart", "nameserver-a", "nameserver-b")
    await compose.run("restart", *BROKERS)
    restarted_us = now_us()
    await until_ready()
    assert all(now > then for now, then in zip([await term(broker) for broker in BROKERS], before, strict=True)), "both began anew"
    seconds = await cluster.until_accepted(queues, after_us=restarted_us)
    report(f"all restarted: the slowest queue's first accepted result {max(seconds.values()):.2f} s after the command ended")
    await compose.run("kill", "broker-a")
    assert await readiness("broker-b") == 200
    killed_us = now_us()
    await cluster.until_accepted([queue for queue in queues if "@broker-b" in queue], after_us=killed_us)
    await compose.run("start", "broker-a")
    await until_ready("broker-a")
    seconds = await cluster.until_accepted(queues, after_us=now_us())
    await cluster.finish_producer()
    verdict = await cluster.prove("consumer-1", "consumer-2")
    report(f"{verdict.events} events from the host, {verdict.repeats} repeated")
    await compose.run("stop")
    for broker in BROKERS:
        stops = [line for line in (await compose.run("logs", broker)).splitlines() if '"broker.stopped"' in line]
        assert stops, f"{broker} did not end in order"
        assert '"clean": true' in stops[-1]


async def test_compose_cluster_is_reachable_from_other_machines_except_its_admin_ports(tmp_path: Path, cluster: Cluster) -> None:
    address = own_address()
    async with composed(tmp_path, LOCKSTEP_HOST=address, LOCKSTEP_BIND="0.0.0.0"):
        await until_ready()
        cluster.addresses["nameserver"] = NAMESERVERS.replace("127.0.0.1", address)
        reported = json.loads(await cluster.command("cluster", "--json"))["brokers"]
        assert [(broker["address"], broker["reached"]) for broker in reported] == [(f"{address}:10911", True), (f"{address}:10921", True)]
        for port in (DASHBOARD_PORT, *ADMIN_PORTS.values()):
            with pytest.raises(OSError, match=f"{port}"):
                await fetch(f"{address}:{port}", "/readyz")


async def test_secure_cluster_serves_its_administrator_and_nobody_without_tls_and_a_password(tmp_path: Path, cluster: Cluster) -> None:
    # podman-compose does not substitute the variables of a value with a tag, as `!override` is.
    secure = tmp_path / "secure.yml"
    secure.write_text(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "docker-compose.secure.yml").read_text()))
    async with composed(tmp_path, secure) as made:

        async def healthy() -> bool:
            doctor = ("lockstep", "doctor")
            return all([await made.exit_code(service, *doctor) == 0 for service in ("nameserver-a", "broker-a", "broker-b")])

        await until(healthy)
        for name in ("ca.pem", "admin.password"):
            (tmp_path / name).write_text(await made.inside("nameserver-b", "cat", f"/security/{name}"))
            (tmp_path / name).chmod(0o600)
        cluster.addresses["nameserver"], tls = NAMESERVERS.replace(";", ","), f"tls_ca={tmp_path / 'ca.pem'}"
        cluster.user, cluster.parameters = "admin", f"{tls}&password_file={tmp_path / 'admin.password'}"
        outside = json.loads(await cluster.command("cluster", "--json"))["brokers"]
        assert [(broker["address"], broker["reached"]) for broker in outside] == [("127.0.0.1:10911", True), ("127.0.0.1:10921", True)]
        await load(cluster)
        await cluster.finish_producer()
        await cluster.prove("consumer-1", "consumer-2")
        cluster.user = ""
        for cluster.parameters, words in [("tls=off", "requires TLS"), (tls, "requires a login")]:
            assert words in " ".join((await cluster.command("cluster", code=1)).split())
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with pytest.raises(HTTPError, match="401"):
            await asyncio.to_thread(urlopen, f"https://localhost:{DASHBOARD_PORT}/topics", context=trusted)


async def test_containers_are_healthy_while_usable_and_restart_when_their_process_ends(compose: Compose) -> None:
    await until_ready()
    for service in (*ADMIN_PORTS, "dashboard"):
        assert await compose.exit_code(service, *health_command(service)) == 0, service
    await compose.run("stop", "nameserver-a", "nameserver-b")
    await until(lambda: compose.exit_code("broker-b", *health_command("broker-b")))  # registered nowhere: not 0
    assert await compose.exit_code("dashboard", *health_command("dashboard")) == 0, "it says what is wrong"
    await compose.run("start", "nameserver-a", "nameserver-b")
    await until_ready()
    assert await compose.exit_code("broker-b", *health_command("broker-b")) == 0
    before = await term("broker-a")
    await compose.inside("broker-a", "python", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")

    async def started_again() -> bool:
        return await readiness("broker-a") == 200 and await term("broker-a") > before

    await until(started_again)


async def test_replica_of_its_profile_takes_the_place_of_its_master(compose: Compose, cluster: Cluster) -> None:
    await until_ready()
    for number, address in enumerate(NAMESERVERS.split(";")):
        cluster.addresses[f"nameserver-{number}"] = address
    await cluster.command("topic", "create", "orders", "--queues", "1", "--broker", "broker-a")
    await compose.run("--profile", "replica", "up", "-d", "broker-a-replica")

    async def in_set() -> bool:
        copies = json.loads(await compose.inside("nameserver-a", "lockstep", "replica", "ls", "--json"))["copies"]
        return [each["address"] for each in copies if each["in_set"]] == ["broker-a-replica:10911"]

    await until(in_set)
    await cluster.command("send", "orders", "copied", "--sharding-key", "k")
    await compose.run("kill", "broker-a")
    await compose.inside("nameserver-a", "lockstep", "replica", "promote", "broker-a-replica:10911", "--yes")
    brokers = {each["name"]: each for each in json.loads(await cluster.command("cluster", "--json"))["brokers"]}
    assert (brokers["broker-a"]["address"], brokers["broker-a"]["reached"]) == ("127.0.0.1:10931", True)
    assert "copied" in await cluster.command("tail", "orders", "--from-start", "--no-follow")


async def shown(compose: Compose, broker: str) -> tuple[str, set[str]]:
    """Return the master of a broker by its register, and the copies in the set, as `lockstep ha show` says them."""
    found = json.loads(await compose.inside("nameserver-a", "lockstep", "ha", "show", broker, "--json"))["register"]
    return found["replicas"][found["master"]], {found["replicas"][member] for member in found["in_sync"]}


async def test_copies_of_a_killed_broker_elect_another_by_etcd(tmp_path: Path, cluster: Cluster, report: Report) -> None:
    async with composed(tmp_path, ROOT / "docker-compose.ha.yml") as made:

        async def in_set() -> bool:
            try:
                return all([(await shown(made, broker))[1] == {f"{broker}:10911", f"{broker}-2:10911"} for broker in BROKERS])
            except (AssertionError, TypeError):
                return False  # no copy answers yet

        await until(in_set)
        for number, address in enumerate(NAMESERVERS.split(";")):
            cluster.addresses[f"nameserver-{number}"] = address
        await load(cluster)
        queues = cluster.acknowledged_queues()
        master, both = await shown(made, "broker-a")
        (other,) = both - {master}
        await made.run("kill", master.removesuffix(":10911"))
        seconds = await cluster.until_accepted(queues, after_us=now_us())
        report(f"{master} killed: the slowest queue's first accepted result {max(seconds.values()):.2f} s after the command ended")
        assert await shown(made, "broker-a") == (other, {other})
        await made.run("kill", "etcd-2")
        await made.run("start", master.removesuffix(":10911"))
        await until(in_set)
        await cluster.finish_producer()
        await cluster.prove("consumer-1", "consumer-2")


async def test_load_profile_loads_with_spark_and_verifies_the_result(compose: Compose, report: Report) -> None:
    await until_ready()
    load = ("--profile", "load", "run", "--rm", "load")
    await compose.run("--profile", "load", "build", "load")
    reported = await compose.run(*load, "/home/lockstep/load_generator.py", "--topic", "load", "--rows", "20000", "--no-progress")
    (manifest,) = set(re.findall(r"\bruns/[0-9a-f]+/manifest.json", reported))
    verdict = await compose.run(*load, "/home/lockstep/verify_load.py", "--manifest", manifest)
    (clean,) = (line for line in verdict.splitlines() if line.startswith("CLEAN:"))
    assert "20,000 rows expected, 20,000 found: 0 lost, 0 repeated, 0 out of order" in clean
    report(next(line for line in reported.splitlines() if "rows stored in" in line))
