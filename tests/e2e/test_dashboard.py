"""lockstep dashboard as a process: it starts without a cluster, follows it, refuses what it should, and stops in order."""

import asyncio
import json
import re
import signal
import socket
from contextlib import AbstractContextManager
from urllib.parse import urlencode

import pytest

from lockstep.dashboard.connection import CONNECTIONS_MAX
from support.cluster import Cluster
from support.http import raw
from support.processes import Program, program, run_program

pytestmark = pytest.mark.e2e

LIMIT_S = 60


def serving(nameserver: str, *options: str) -> AbstractContextManager[Program]:
    return program(
        "lockstep.cli.main",
        *("dashboard", "--nameserver", nameserver, "--listen", "127.0.0.1:0", *options),
        event="dashboard.started",
    )


async def read(panel: Program, path: str, host: str = "localhost") -> tuple[int, str]:
    address = panel.started["address"].removeprefix("http://").partition("/")[0]
    return await raw(address, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


async def until_shown(panel: Program, path: str, words: str) -> None:
    """Return when the page has these words."""
    async with asyncio.timeout(LIMIT_S):
        while words not in (await read(panel, path))[1]:  # noqa: ASYNC110 as a browser does
            await asyncio.sleep(0.2)


async def test_dashboard_starts_before_its_cluster_and_follows_it(cluster: Cluster) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nameserver = f"127.0.0.1:{held.getsockname()[1]}"
    with serving(nameserver) as panel:
        await until_shown(panel, "/", "The nameservers do not answer")
        assert await cluster.nameserver(listen=nameserver) == nameserver
        await until_shown(panel, "/", "No broker has registered")
        await cluster.broker("broker-a")
        await until_shown(panel, "/", "broker-a</th>")
        assert (await read(panel, "/livez")) == (200, "ok\n")
        assert (await read(panel, "/static/app.js"))[0] == 200
        assert (await read(panel, "/static/../config.py"))[0] == 404
        assert (await read(panel, "/", host="evil.example"))[0] == 421
        assert panel.stop() == 0


async def test_stop_does_not_wait_for_idle_connections(cluster: Cluster) -> None:
    with serving(await cluster.nameserver()) as panel:
        address = panel.started["address"].removeprefix("http://").rstrip("/")
        host, _, port = address.rpartition(":")
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        reader, writer = connections[0]
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        connections[1][1].write(b"GET / HT")
        assert panel.stop(signal.SIGINT) == 0
        for _, each in connections:
            each.close()


async def test_silent_connections_take_no_place_of_requests(cluster: Cluster) -> None:
    with serving(await cluster.nameserver()) as panel:
        host, _, port = panel.started["address"].removeprefix("http://").rstrip("/").rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX + 10)]
        assert await read(panel, "/livez") == (200, "ok\n")
        assert (await read(panel, "/groups"))[0] == 200
        async with asyncio.timeout(LIMIT_S):
            assert await silent[-1][0].read() == b"", "it is closed"
        for _, each in silent:
            each.close()


@pytest.mark.parametrize("request_line", [b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"])
async def test_rubbish_is_answered_and_changes_nothing(cluster: Cluster, request_line: bytes) -> None:
    with serving(await cluster.nameserver()) as panel:
        address = panel.started["address"].removeprefix("http://").rstrip("/")
        status, _ = await raw(address, request_line.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert status == 400
        assert (await read(panel, "/livez"))[0] == 200


async def test_dashboard_behind_a_proxy_links_below_its_path(cluster: Cluster) -> None:
    with serving(await cluster.nameserver(), "--root-path", "/lockstep", "--host-name", "panel.example") as panel:
        status, text = await read(panel, "/groups", host="panel.example")
        assert status == 200
        assert 'href="/lockstep/topics"' in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "0.0.0.0:9880"], "--insecure"),
        (["--listen", "nowhere"], "nowhere"),
        (["--root-path", "lockstep/"], "begins with a slash"),
        (["--nameserver", ""], "nameserver"),
        (["--host-nam"], "--host-name"),
    ],
)
def test_invalid_setting_is_explained_in_one_line(options: list[str], words: str) -> None:
    ended = run_program("lockstep.cli.main", "dashboard", *options)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_taken_port_is_explained_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = run_program("lockstep.cli.main", "dashboard", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert ended.returncode == 1
    assert "the dashboard can't listen on" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_allowed_changes_are_made_from_its_own_forms_and_logged(cluster: Cluster) -> None:
    nameserver = await cluster.nameserver()
    await cluster.broker("broker-a")

    async def post(panel: Program, fields: dict[str, str], *headers: str) -> tuple[int, str]:
        address = panel.started["address"].removeprefix("http://").partition("/")[0]
        body = urlencode(fields)
        lines = ["POST /changes/topic-create HTTP/1.1", f"Host: {address}", "Connection: close", *headers]
        lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}"]
        return await raw(address, ("\r\n".join(lines) + "\r\n\r\n" + body).encode())

    with serving(nameserver, "--allow-changes") as panel:
        await until_shown(panel, "/", "Changes are allowed")
        origin = f"Origin: http://{panel.started['address'].removeprefix('http://').partition('/')[0]}"
        token = re.search(r'name="token" value="(\w+)"', (await read(panel, "/changes/topic-create"))[1])
        assert token is not None
        form = {"token": token[1], "topic": "orders", "queues": "3", "broker": "", "step": "plan"}
        assert (await post(panel, form))[0] == 403
        assert (await post(panel, form, "Origin: http://evil.example"))[0] == 403
        status, plan = await post(panel, form, origin)
        assert (status, "lockstep topic create orders --queues 3" in plan) == (200, True)
        agreed = dict(re.findall(r'name="(digest|nonce)" value="(\w+)"', plan))
        assert len(agreed) == 2
        for _ in range(2):  # a second click changes nothing
            status, _ = await post(panel, {**form, "step": "do", **agreed}, origin)
            assert status == 303
        status, done = await read(panel, f"/changes/topic-create/done/{agreed['nonce']}")
        assert (status, "Topic orders created: 3 queues on broker-a." in done) == (200, True)
        assert panel.stop() == 0
        assert panel.process.stdout is not None
        made = [json.loads(line) for line in panel.process.stdout if "change.made" in line]
        assert [(each["change"], each["target"], each["peer"]) for each in made] == [("topic-create", "orders", "127.0.0.1")]
