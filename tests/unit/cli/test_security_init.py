"""`lockstep security init`: certificates with which a server is trusted, and users who can log in."""

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from lockstep.cli import main as cli
from lockstep.runtime.connections.dial import call
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import ClientSecurity
from lockstep.runtime.security.scram import Verifier
from lockstep.runtime.security.tls import ClientTls, ServerCertificate, ServerTls, Tls
from lockstep.runtime.security.users import read_users
from support.certificates import requiring
from support.peers import serving


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Run the command. Return its output, or its error for a non-zero exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["security", "init", *arguments])
    assert (ended.value.code or 0) == code
    out, error = capsys.readouterr()
    return out if code == 0 else error


def test_server_with_the_made_certificate_is_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = json.loads(run(capsys, str(tmp_path / "made"), "--name", "127.0.0.1", "--name", "broker_a.example", "--json"))
    assert first["new_authority"]
    assert first["names"] == ["127.0.0.1", "broker_a.example"]
    tls = ServerTls(ServerCertificate(first["cert"], first["key"], first["ca"]))

    async def ask() -> int:
        own = Tls(ca=first["ca"], cert=first["cert"], key=first["key"])
        async with serving(lambda command, endpoint: endpoint.send(command.reply()), security=requiring(tls)) as server:
            address = server.addresses["internal"]
            return (await call(Host.real(), address, 1, security=ClientSecurity(ClientTls(own)), timeout_ms=5_000)).code

    assert asyncio.run(ask()) == 0
    assert {name: stat.S_IMODE(os.stat(first[name]).st_mode) for name in ("ca", "ca_key", "cert", "key")} == {
        "ca": 0o644,
        "ca_key": 0o600,
        "cert": 0o644,
        "key": 0o600,
    }
    second = json.loads(run(capsys, str(tmp_path / "made"), "--name", "127.0.0.1", "--json"))
    assert not second["new_authority"]
    assert tls.look(0) == (first["cert"], first["key"])
    assert asyncio.run(ask()) == 0


def test_output_says_how_servers_and_clients_use_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, str(tmp_path), "--no-users")
    assert "localhost, 127.0.0.1, ::1, valid until " in out
    files = f"--tls-cert {tmp_path / 'server.pem'} --tls-key {tmp_path / 'server.key'}"
    assert out.count(f"--insecure anonymous {files}") == 2
    assert f"lockstep://HOST:9876/?tls=on&tls_ca={tmp_path / 'ca.pem'}" in out
    assert not (tmp_path / "users.toml").exists()
    out = run(capsys, str(tmp_path))
    assert f"Added admin to {tmp_path / 'users.toml'}, with random passwords in admin.password" in out
    assert "run this again with --broker NAME" in out
    assert f"--security {tmp_path / 'users.toml'} {files}" in out


def test_users_are_made_once_and_those_of_brokers_when_they_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = json.loads(run(capsys, str(tmp_path), "--broker", "broker-a", "--broker", "broker-a", "--json"))
    assert first["passwords"] == {name: str(tmp_path / f"{name}.password") for name in ("admin", "broker-a")}
    before = read_users(first["users"]).users
    assert {name: (each.rights.is_super, each.brokers) for name, each in before.items()} == {
        "admin": (True, ()),
        "broker-a": (False, ("broker-a",)),
    }
    passwords = set()
    for name, path in first["passwords"].items():
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        password = Path(path).read_text().rstrip("\n")
        (verifier,) = before[name].verifiers
        assert Verifier.of(password, verifier.salt) == verifier
        passwords.add(password)
    assert len(passwords) == 2
    second = json.loads(run(capsys, str(tmp_path), "--broker", "broker-a", "--broker", "broker-b", "--json"))
    assert list(second["passwords"]) == ["broker-b"]
    after = read_users(first["users"]).users
    assert {name: each for name, each in after.items() if name != "broker-b"} == before
    assert json.loads(run(capsys, str(tmp_path), "--json"))["passwords"] == {}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--name", "a b"], 2, "'a b' is not a host name or an address"),
        (["--name", "x." * 200], 2, "is not a host name or an address"),
        (["--server", "../x"], 2, "expected a name for files, other than ca"),
        (["--server", "ca"], 2, "expected a name for files, other than ca"),
        (["--days", "0"], 2, "days"),
        (["--broker", "a b"], 2, "broker name"),
        (["--broker", "room@broker-a"], 2, "is not the name of a user"),
        (["--broker", "admin"], 2, "that is the name of the user who may do everything"),
        (["--broker", "broker-a", "--no-users"], 2, "leave one of them out"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, words: str) -> None:
    assert words in run(capsys, str(tmp_path), *options, code=code)
    assert not list(tmp_path.iterdir())


def test_files_that_are_not_what_they_should_be_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, str(tmp_path))
    (tmp_path / "ca.key").write_text("no key")
    assert "ca.key is no certificate or key in PEM form" in run(capsys, str(tmp_path), code=1)
    (tmp_path / "ca.key").unlink()
    assert f"{tmp_path / 'ca.key'}: no such file or directory" in run(capsys, str(tmp_path), code=2)
    assert f"{tmp_path / 'ca.pem' / 'x'}: not a directory" in run(capsys, str(tmp_path / "ca.pem" / "x"), code=1)
    assert f"{tmp_path / 'ca.pem'}: not a directory" in run(capsys, str(tmp_path / "ca.pem"), code=1)
