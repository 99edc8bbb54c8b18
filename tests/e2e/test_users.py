"""A cluster whose servers require a login: clients, commands and brokers, while passwords change."""

import asyncio
import json
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import AuthenticationError
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from lockstep.runtime.security.users import read_users
from support.certificates import write_authority, write_certificate
from support.cluster import WAIT_S, Cluster
from support.http import raw
from support.logins import PASSWORD, logging_in, write_users
from support.processes import clean_environment, program, run_program

pytestmark = pytest.mark.e2e

NEW = "another password"


@pytest.fixture
def closed(cluster: Cluster, tmp_path: Path) -> Cluster:
    """Return a cluster in which everybody logs in as billing, with the password of a file."""
    (tmp_path / "password").write_text(PASSWORD)
    users = write_users(tmp_path / "users.toml", {"billing": [PASSWORD]})
    cluster.server_options = ("--security", users, "--admin-listen", "127.0.0.1:0")
    cluster.user, cluster.parameters = "billing", f"password_file={tmp_path / 'password'}"
    return cluster


async def reload(cluster: Cluster, name: str) -> tuple[int, dict[str, Any]]:
    """Let a server read its files again. Return the status and the answer."""
    event = "nameserver.started" if name == "nameserver" else "broker.started"
    address = str((await cluster.processes[name].wait_for_event(event))["admin"])
    status, body = await raw(address, b"POST /reload HTTP/1.1\r\nX-Lockstep: 1\r\n\r\n")
    return status, json.loads(body)


async def test_ordered_consumption_goes_on_while_a_password_is_replaced(closed: Cluster, tmp_path: Path) -> None:
    await closed.servers()
    await closed.consumer("consumer-1")
    await closed.consumer("consumer-2")
    await closed.until_held(8, "consumer-1", "consumer-2")
    await closed.producer("producer", "--keys", "50", "--steps", "1000000")
    await closed.until_handled(200)
    (tmp_path / "new").write_text(NEW)
    change = "user", "rotate", "billing", "--security", str(tmp_path / "users.toml")
    assert "User billing has 2 passwords" in await closed.command(*change, "--password-file", str(tmp_path / "new"))
    (tmp_path / "password").write_text(NEW)
    assert "Took 1 passwords of billing away" in await closed.command(*change, "--end")
    broker = closed.processes["broker-a"]
    assert [(await reload(closed, name))[0] for name in ("nameserver", "broker-a", "broker-b")] == [200] * 3
    assert (await broker.wait_for_event("security.reloaded"))["files"] == [str(tmp_path / "users.toml")]
    report = json.loads(await closed.command("cluster", "--json"))
    assert all(each["reached"] for each in report["brokers"]), "the nameserver and the brokers have the new password"
    await closed.kill("broker-a")
    await closed.restart("broker-a")
    await closed.until_handled_more(200)
    await closed.finish_producer()
    await closed.prove("consumer-1", "consumer-2")


async def test_who_has_no_user_or_a_wrong_password_is_told_so(closed: Cluster, tmp_path: Path) -> None:
    await closed.servers(brokers=["broker-a"])
    (tmp_path / "wrong").write_text("wrong password")
    address = closed.addresses["nameserver"]
    for nameserver, words in [
        (address, "this server requires a login: give the client a user and a password"),
        (f"lockstep://billing@{address}/?password_file={tmp_path / 'wrong'}", "the user or the password is wrong"),
        (f"lockstep://billing@{address}/?password_file={tmp_path / 'none'}", f"{tmp_path / 'none'}: no such file or directory"),
        (f"lockstep://billing@{address}", "user billing has no password: give it by"),
        (f"lockstep://billing:secret@{address}", "others may see a password that it has"),
    ]:
        code, _, error = await closed.started_command("topic", "list", "--nameserver", nameserver)
        assert code != 0
        assert words in " ".join(error.split()), error
        assert "secret" not in error


async def test_user_that_is_removed_is_cut_and_stays_out(closed: Cluster, tmp_path: Path) -> None:
    users = {"billing": [PASSWORD], "shop": [NEW]}
    write_users(tmp_path / "users.toml", users)
    await closed.servers(brokers=["broker-a"])
    (tmp_path / "shop").write_text(NEW)
    closed.user, closed.parameters = "shop", f"password_file={tmp_path / 'shop'}"
    shop = await closed.consumer("consumer-1")
    await closed.until_held(4, "consumer-1")
    closed.user, closed.parameters = "billing", f"password_file={tmp_path / 'password'}"
    assert "Removed user shop" in await closed.command("user", "rm", "shop", "--security", str(tmp_path / "users.toml"))
    refused = await shop.wait_for_event("login.refused", timeout_s=40)
    assert "user shop: the user or the password is wrong" in refused["error"]
    assert json.loads(await closed.command("cluster", "--json"))["brokers"][0]["reached"], "billing is still served"


async def test_last_logins_are_listed_and_a_server_that_cannot_be_asked_is_named(closed: Cluster, tmp_path: Path) -> None:
    users = write_users(
        tmp_path / "users.toml", {"billing": [PASSWORD], "shop": [PASSWORD], "idle": [PASSWORD]}, {"shop": 'role = "viewer"'}
    )
    await closed.servers()
    await closed.stop("broker-b")
    listing = ("user", "list", "--last-login", "--security", users)
    closed.user = "shop"
    report = json.loads(await closed.command(*listing, "--json"))
    found = {each["user"]: each["lastLogin"] for each in report["users"]}
    assert (list(report["failed"]), found["idle"], found["shop"]["signed"]) == (["broker broker-b"], None, False)
    assert {found["shop"]["server"], found["billing"]["server"]} <= {f"nameserver {closed.addresses['nameserver']}", "broker broker-a"}
    table = await closed.command(*listing)
    assert [line.split()[-4:] for line in table.splitlines() if line.startswith("idle")] == [["known", "-", "-", "0"]]
    assert "warning: the last logins at broker broker-b are not known: " in await closed.command_stderr(*listing)
    await closed.restart("broker-b")
    assert re.search(r"^idle .* never  +-  +-  +0$", await closed.command(*listing), re.M)


async def test_server_that_others_reach_needs_users_and_a_certificate(cluster: Cluster, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    tls = ("--tls-cert", cert, "--tls-key", key)
    users = ("--security", write_users(tmp_path / "users.toml", {"billing": [PASSWORD]}))
    admin = ("--admin-listen", "0.0.0.0:0")
    for options, words in [
        ((), "pass --insecure if"),
        (tls, "pass --insecure anonymous if"),
        (users, "pass --insecure plaintext if"),
        ((*tls, *users, "--tls", "allow"), "pass --insecure plaintext if"),
        ((*tls, *users, "--users", "optional"), "pass --insecure anonymous if"),
        ((*users, "--users", "optional", "--insecure", "plaintext"), "pass --insecure if"),
        ((*tls, "--tls", "allow", "--insecure", "anonymous"), "pass --insecure if"),
    ]:
        code, _, error = await cluster.started_command("nameserver", "--listen", "0.0.0.0:0", *options)
        assert (code, words in error) == (2, True), error
    code, _, error = await cluster.started_command("nameserver", "--listen", "127.0.0.1:0", "--users", "optional")
    assert (code, "users = optional needs users" in error) == (2, True), error
    (tmp_path / "password").write_text(PASSWORD)
    ca, password = f"tls_ca={write_authority(tmp_path / 'ca.pem')}", f"password_file={tmp_path / 'password'}"
    for name, options, user, parameters in [
        ("both", (*tls, *users, *admin), "billing@", f"{ca}&{password}"),
        ("plaintext", (*users, "--insecure", "plaintext"), "billing@", password),
        ("anonymous", (*tls, *admin, "--insecure", "anonymous"), "", ca),
    ]:
        server = await cluster.start(name, ["-m", "lockstep.nameserver", "--listen", "0.0.0.0:0", *options])
        where = f"127.0.0.1:{(await server.wait_for_event('nameserver.started'))['address'].rpartition(':')[2]}"
        code, _, error = await cluster.started_command("cluster", "--nameserver", f"lockstep://{user}{where}/?{parameters}")
        assert (code, "no broker" in error) == (1, True), error


async def test_commands_without_an_address_use_the_login_that_was_stored(closed: Cluster, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    closed.server_options += ("--tls", "require", "--tls-cert", cert, "--tls-key", key)
    closed.parameters += f"&tls_ca={write_authority(tmp_path / 'ca.pem')}"
    await closed.servers(brokers=["broker-a"])
    environment, file = clean_environment(HOME=str(tmp_path)), tmp_path / ".lockstep" / "client.toml"

    async def lockstep(*arguments: str, password: str = "", cwd: Path = Path("/")) -> tuple[int, str]:
        def run() -> "subprocess.CompletedProcess[str]":
            command = [sys.executable, "-m", "lockstep.cli.main", *arguments]
            return subprocess.run(command, capture_output=True, text=True, input=password, env=environment, cwd=cwd, timeout=WAIT_S)

        ended = await asyncio.to_thread(run)
        assert PASSWORD not in ended.stdout + ended.stderr
        return ended.returncode, " ".join((ended.stdout + ended.stderr).split())

    login = "login", "--nameserver", f"lockstep://{closed.addresses['nameserver']}/?tls_ca=ca.pem", "--user", "billing"
    code, said = await lockstep(*login, password="wrong password", cwd=tmp_path)
    assert (code, "the user or the password is wrong" in said, file.exists()) == (1, True, False), said
    code, said = await lockstep(*login, password=PASSWORD, cwd=tmp_path)
    assert (code, f"stored as default in {file}" in said, stat.S_IMODE(file.stat().st_mode)) == (0, True, 0o600), said
    assert await lockstep("login", "--list") == (0, f"login nameserver user TLS default {closed.addresses['nameserver']} billing yes")
    for command in (("topic", "show", "orders"), ("send", "orders", "body"), ("tail", "orders", "--from-start", "--no-follow")):
        code, said = await lockstep(*command)
        assert (code, "orders" in said) == (0, True), said
    await closed.kill("nameserver")
    code, said = await lockstep("topic", "list")
    assert code == 1
    assert said.endswith(f"; the address is that of the login default in {file}, whose user is billing")
    assert await lockstep("logout") == (0, f"Removed the login default from {file}.")
    code, said = await lockstep("topic", "list", "--nameserver", "default")
    assert (code, f"there is no login 'default' in {file}: there are none" in said) == (2, True), said


def test_broker_starts_with_the_last_users_that_it_could_read_only_if_it_is_asked_to(tmp_path: Path) -> None:
    users, copy = write_users(tmp_path / "users.toml", {"billing": [PASSWORD]}), tmp_path / "store" / "lockstep" / "users.toml"
    broker = ("lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"), "--security", users)
    with program(*broker, event="broker.started") as running:
        assert running.stop() == 0
    assert copy.read_bytes() == Path(users).read_bytes()
    Path(users).write_text("[user")
    ended = run_program(*broker)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"{users}: it is not TOML" in ended.stderr
    assert f"{copy} has the users that this server could read last: --security-last-good starts with them" in ended.stderr
    for _ in range(2):
        with program(*broker, "--security-last-good", event="security.last_good") as running:
            assert (running.started["level"], running.started["users"], running.started["not_read"]) == ("warning", str(copy), users)
            assert running.process.stdout is not None
            assert any(json.loads(line)["event"] == "broker.started" for line in running.process.stdout)
            assert running.stop() == 0
    ended = run_program("lockstep.broker", "--security-last-good")
    assert (ended.returncode, "security_last_good needs users" in ended.stderr) == (2, True)


async def test_users_are_read_at_once_when_it_is_asked_for(closed: Cluster, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    await closed.servers(brokers=["broker-a"])
    for name in ("nameserver", "broker-a"):
        server = closed.processes[name]
        write_users(users, {"billing": [PASSWORD], name: [NEW]})
        status, answer = await reload(closed, name)
        listed = json.loads(await closed.command("user", "list", "--json", "--security", str(users)))
        assert (status, answer["digest"]) == (200, listed["digest"])
        good = users.read_bytes()
        users.write_text("[user")
        server.signal(signal.SIGHUP)
        assert f"{users}: it is not TOML" in (await server.wait_for_event("security.reload_failed"))["reason"]
        users.write_bytes(good)
    assert (closed.folder / "store-broker-a" / "lockstep" / "users.toml").read_bytes() == good


async def test_no_secret_is_in_logs_arguments_or_shown_settings(closed: Cluster, tmp_path: Path) -> None:
    closed.server_options += ("--log-level", "debug", "--admin-listen", "127.0.0.1:0")
    await closed.servers(brokers=["broker-a"])
    await closed.consumer("consumer-1")
    await closed.producer("producer", "--keys", "5")
    await closed.until_handled(20)
    (tmp_path / "wrong").write_text("a wrong password")
    wrong = f"lockstep://billing@{closed.addresses['nameserver']}/?password_file={tmp_path / 'wrong'}"
    _, _, error = await closed.started_command("topic", "list", "--nameserver", wrong)
    config = await closed.command("broker", "config", "get", "--broker", "broker-a", "--json")
    seen = [path.read_text() for path in closed.folder.glob("*.log")]
    for process in closed.processes.values():
        seen += [repr(process.events), await asyncio.to_thread(Path(f"/proc/{process.pid}/cmdline").read_text)]
    assert any("login.succeeded" in text for text in seen), "logins are logged at this level"
    seen += [error, config]
    verifier = read_users(str(tmp_path / "users.toml")).users["billing"].verifiers[0]
    for secret in (PASSWORD, "a wrong password", str(verifier).rpartition("$")[2], verifier.salt.hex()):
        assert not any(secret in text for text in seen), secret


async def test_one_program_with_a_wrong_password_keeps_none_of_200_others_of_its_address_out(closed: Cluster) -> None:
    await closed.servers(brokers=["broker-a"])
    address, host = closed.addresses["broker-a"], Host.real()

    async def fail() -> None:
        while True:
            with pytest.raises(AuthenticationError):
                await connect(host, address, security=logging_in(password="a wrong password"))

    wrong = [asyncio.create_task(fail()) for _ in range(50)]
    try:
        right = await asyncio.gather(*(connect(host, address, security=logging_in()) for _ in range(200)))
        found = await asyncio.gather(*(each.request(RequestCode.GET_BROKER_CONFIG, timeout_ms=20_000) for each in right))
        assert [each.code for each in found] == [ResponseCode.SUCCESS] * 200
        assert not any(task.done() for task in wrong)
    finally:
        for task in wrong:
            task.cancel()
        await asyncio.gather(*wrong, return_exceptions=True)
        for each in right:
            each.close("done")
