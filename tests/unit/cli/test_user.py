"""`lockstep user`: changes of the file of users, which servers can read after each of them."""

import io
import json
import os
import stat
from pathlib import Path

import pytest

from lockstep.cli import main as cli
from lockstep.runtime.security.scram import Verifier
from lockstep.runtime.security.users import read_users
from lockstep.runtime.security.watched_files import FILE_BYTES_MAX

PASSWORD = "correct horse"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class World:
    """A file of users, and a command whose standard input is a pipe."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.stdin: type[io.StringIO] = io.StringIO
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *arguments: str, password: str = "", code: int = 0, program: str = "user", stderr: bool = True) -> str:
        """Run the command. Return its output, or its error for a non-zero exit code."""
        self._monkeypatch.setattr("sys.stdin", self.stdin(f"{password}\n"))
        with pytest.raises(SystemExit) as ended:
            cli.main([program, *arguments, "--security", str(self.path)])
        assert (ended.value.code or 0) == code
        out, error = self._capsys.readouterr()
        return out if code == 0 or not stderr else error

    def verifiers(self, name: str) -> tuple[Verifier, ...]:
        return read_users(str(self.path)).users[name].verifiers


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    return World(tmp_path / "etc" / "users.toml", monkeypatch, capsys)


def matches(verifier: Verifier, password: str) -> bool:
    return Verifier.of(password, verifier.salt, verifier.iterations) == verifier


def test_rights_are_added_shown_and_tested(world: World) -> None:
    rights = (
        "--role",
        "consumer",
        "--topic",
        "orders*",
        "--group",
        "billing",
        "--allow",
        "Pub topic:receipts",
        "--deny",
        "Sub topic:orders-x",
    )
    world.run("add", "billing", *rights, password=PASSWORD)
    world.run("add", "ops", "--super", password=PASSWORD)
    world.run("add", "broker-a", "--broker", "broker-a", password=PASSWORD)
    users = {each["user"]: each for each in json.loads(world.run("list", "--json"))["users"]}
    assert users["billing"]["allow"] == ["Sub topic:orders*", "Sub group:billing", "Pub topic:receipts"]
    assert (users["ops"]["super"], users["broker-a"]["brokers"]) == (True, ["broker-a"])
    listed = world.run("list")
    assert all(words in listed for words in ("3 rules allow; 1 rules deny", "everything", "register broker-a"))
    rows = json.loads(world.run("list", "--user", "billing", "--json", program="acl"))
    assert [(row["effect"], row["rule"]) for row in rows][:2] == [("deny", "Sub topic:orders-x"), ("allow", "Sub topic:orders*")]
    told = world.run("test", "Sub topic:orders-1", "--user", "billing", program="acl")
    assert told == "User billing may Sub topic:orders-1: allowed by 'Sub topic:orders*'.\n"
    for rule, words in [
        ("Sub topic:orders-x", "may not Sub topic:orders-x: denied by 'Sub topic:orders-x'"),
        ("Sub,Delete topic:orders-1", "may not Delete topic:orders-1: no rule allows it"),
    ]:
        assert words in world.run("test", rule, "--user", "billing", program="acl", code=1, stderr=False)
    assert "user nobody does not exist; the users are billing, broker-a, ops" in world.run(
        "list", "--user", "nobody", program="acl", code=1
    )
    assert "rule 'Sub': expected ACTION" in world.run("test", "Sub", "--user", "billing", program="acl", code=2)
    before = world.path.read_text()
    assert "user.shop: role producer needs topics" in world.run("add", "shop", "--role", "producer", password=PASSWORD, code=2)
    assert world.path.read_text() == before


def test_limits_are_added_and_shown_and_refused_with_the_key(world: World) -> None:
    world.run("add", "shop", "--limit", "bytes_in_per_s=20MiB", "--limit", "connections=50", password=PASSWORD)
    assert 'limits = {bytes_in_per_s = "20MiB", connections = "50"}' in world.path.read_text()
    (shop,) = json.loads(world.run("list", "--json"))["users"]
    assert shop["limits"] == {"connections": 50, "bytes_in_per_s": 20 << 20}
    assert "connections=50, bytes_in_per_s=20971520" in world.run("list")
    for limit, words in [("connections", "limits.connections: ''"), ("topics=1", "limits: unknown key 'topics'")]:
        assert f"user.billing: {words}" in world.run("add", "billing", "--limit", limit, password=PASSWORD, code=2)


def test_users_are_added_changed_listed_and_removed(world: World) -> None:
    assert world.run("add", "billing", password="correct horse") == f"Added user billing to {world.path}, which is new.\n"
    assert stat.S_IMODE(os.stat(world.path).st_mode) == 0o600
    added = world.run("add", "shop", "--from", "10.0.0.0/8", "--from", "::1", password="another password")
    assert added == f"Added user shop to {world.path}.\n"
    assert matches(world.verifiers("billing")[0], "correct horse")
    before = world.verifiers("billing")
    world.run("passwd", "billing", password="third password")
    assert matches(world.verifiers("billing")[0], "third password")
    assert world.verifiers("billing")[0].salt != before[0].salt
    listed = json.loads(world.run("list", "--json"))
    assert [(each["user"], each["passwords"], each["from"]) for each in listed["users"]] == [
        ("billing", 1, []),
        ("shop", 1, ["10.0.0.0/8", "::1/128"]),
    ]
    assert listed["digest"] == read_users(str(world.path)).digest
    assert "everywhere" in world.run("list")
    world.run("rm", "billing")
    assert list(read_users(str(world.path)).users) == ["shop"]


def test_passwords_are_rotated_under_one_salt(world: World) -> None:
    world.run("add", "billing", password="old password")
    assert "has 2 passwords" in world.run("rotate", "billing", password="new password")
    old, new = world.verifiers("billing")
    assert (old.salt, old.iterations) == (new.salt, new.iterations)
    assert (matches(old, "old password"), matches(new, "new password")) == (True, True)
    assert "Took 1 passwords" in world.run("rotate", "billing", "--end")
    assert world.verifiers("billing") == (new,)


def test_comments_of_the_file_stay(world: World) -> None:
    world.run("add", "billing", password="correct horse")
    world.path.write_text(world.path.read_text() + "\n# the shop, until March\n")
    world.run("add", "shop", password="another password")
    assert "# the shop, until March" in world.path.read_text()


def test_secret_of_an_access_key_is_named_and_the_user_has_a_password_only_if_it_is_given(world: World, tmp_path: Path) -> None:
    beside, password = world.path.parent / "billing.secret", tmp_path / "password"
    world.path.parent.mkdir()
    for path, text in ((beside, "a secret of billing"), (password, PASSWORD)):
        path.touch(0o600)
        path.write_text(text)
    world.run("add", "billing", "--secret-file", str(beside))
    world.run("add", "shop", "--secret-file", "/run/secrets/shop", "--password-file", str(password))
    users = {each["user"]: (each["passwords"], each["secrets"]) for each in json.loads(world.run("list", "--json"))["users"]}
    assert users == {"billing": (0, 1), "shop": (1, 1)}
    text = world.path.read_text()
    assert 'secret = {file = "billing.secret"}' in text
    assert 'secret = {file = "/run/secrets/shop"}' in text
    assert "a secret" not in text
    assert "user billing has no password: `lockstep user passwd billing`" in world.run("rotate", "billing", password=PASSWORD, code=1)
    world.run("passwd", "billing", password=PASSWORD)
    assert matches(world.verifiers("billing")[0], PASSWORD)
    beside.write_text("short")
    assert f"{beside}: a secret of 5 characters" in world.run("add", "other", "--secret-file", str(beside), code=2)


def test_password_may_come_from_a_file(world: World, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b"\xef\xbb\xbfcorrect horse\r\nsecond line\n")
    world.run("add", "billing", "--password-file", str(path))
    assert matches(world.verifiers("billing")[0], "correct horse")
    for content, words in [(b"short\n", "a password of 5 characters: expected 8 to 256"), (b"\xff" * 8, "its first line is not UTF-8")]:
        path.write_bytes(content)
        assert f"{path}: {words}" in world.run("passwd", "billing", "--password-file", str(path), code=2)


def test_password_is_typed_twice_at_a_terminal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["correct horse", "correct house", "correct horse", "correct horse"]
    monkeypatch.setattr("getpass.getpass", lambda _: answers.pop(0))
    world.stdin = Terminal
    assert "the passwords differ: nothing was changed" in world.run("add", "billing", code=2)
    assert not world.path.exists()
    world.run("add", "billing")
    assert matches(world.verifiers("billing")[0], "correct horse")


@pytest.mark.parametrize(
    ("arguments", "password", "code", "words"),
    [
        (
            ("add", "billing"),
            "correct horse",
            1,
            "user billing exists: `lockstep user passwd billing` changes its password, `… rm billing`",
        ),
        (("rotate", "billing"), "correct horse", 1, "user billing has this password already"),
        (
            ("add", "b", "--allow", f"Pub topic:{'x' * FILE_BYTES_MAX}"),
            "correct horse",
            1,
            f"and servers read {FILE_BYTES_MAX}: nothing was",
        ),
        (("add", "a:b"), "correct horse", 2, "'a:b' is not the name of a user"),
        (("add", "b"), "short", 2, "a password of 5 characters: expected 8 to 256"),
        (("add", "b", "--from", "10.0.0.1/8"), "correct horse", 2, "user.b: from: 10.0.0.1/8 has host bits set"),
        (("passwd", "nobody"), "correct horse", 1, "user nobody does not exist; the users are billing"),
        (("rotate", "nobody", "--end"), "", 1, "user nobody does not exist; the users are billing"),
        (("rm", "nobody"), "", 1, "user nobody does not exist; the users are billing"),
    ],
)
def test_refused_change_leaves_the_file_as_it_is(world: World, arguments: tuple[str, ...], password: str, code: int, words: str) -> None:
    world.run("add", "billing", password="correct horse")
    before = world.path.read_bytes()
    error = world.run(*arguments, password=password, code=code)
    assert words in error
    assert "correct horse" not in error
    assert world.path.read_bytes() == before


def test_error_about_an_unknown_user_names_some_of_many(world: World) -> None:
    world.run("add", "user00", password=PASSWORD)
    verifier = world.verifiers("user00")[0]
    world.path.write_text(world.path.read_text() + "".join(f'[user.user{n:02}]\nverifier = "{verifier}"\n' for n in range(1, 30)))
    for arguments, program in [(("rm", "nobody"), "user"), (("list", "--user", "nobody"), "acl")]:
        assert "the users are user00, user01, " in (error := world.run(*arguments, program=program, code=1))
        assert error.endswith("user18, user19 and 10 more\n")


def test_file_that_is_not_there_or_not_the_file_of_users_is_named(world: World, tmp_path: Path) -> None:
    assert f"{world.path}: no such file" in world.run("rm", "billing", code=1)
    world.path.parent.mkdir()
    world.path.write_text("[server]\n")
    assert f"{world.path}: unknown key 'server'" in world.run("add", "billing", password="correct horse", code=2)
