"""The user and the password of a client: where they come from, and where they are never shown."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Client, Producer, PullConsumer, PushConsumer
from lockstep.client.sync import Producer as BlockingProducer
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import NO_LOGIN, ClusterAddress, Login
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.runtime.security.scram import Challenge, salted_password

PASSWORD = "correct horse"
CHALLENGE = Challenge(b"salt" * 4, 4_096)
MADE = {
    "Client": lambda **login: Client("h:1", **login),
    "Producer": lambda **login: Producer("g", nameserver="h:1", **login),
    "PushConsumer": lambda **login: PushConsumer("g", nameserver="h:1", **login),
    "PullConsumer": lambda **login: PullConsumer("g", nameserver="h:1", **login),
    "sync.Producer": lambda **login: BlockingProducer("g", nameserver="h:1", **login),
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCKSTEP_USER", "LOCKSTEP_PASSWORD", "LOCKSTEP_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", MADE)
def test_every_client_takes_a_user_and_a_password_and_shows_no_password(name: str) -> None:
    made: Any = MADE[name](user="billing", password=PASSWORD)
    assert PASSWORD not in repr(made)
    assert PASSWORD not in repr(made.config)
    with pytest.raises(ConfigError, match="user billing has no password: give it by") as caught:
        MADE[name](user="billing")
    with pytest.raises(ConfigError, match="a password without a user"):
        MADE[name](password=PASSWORD)
    with pytest.raises(ConfigError, match="password is of type bytes: expected") as wrong:
        MADE[name](user="billing", password=PASSWORD.encode())
    assert PASSWORD not in str(wrong.value) + str(caught.value)


@pytest.mark.parametrize(
    ("address", "login", "environment", "expected"),
    [
        ("h:1", NO_LOGIN, {}, None),
        ("h:1", Login("a", PASSWORD), {"LOCKSTEP_USER": "b", "LOCKSTEP_PASSWORD": "other password"}, ("a", PASSWORD)),
        ("lockstep://a@h:1", NO_LOGIN, {"LOCKSTEP_USER": "b", "LOCKSTEP_PASSWORD": PASSWORD}, ("a", PASSWORD)),
        ("h:1", NO_LOGIN, {"LOCKSTEP_USER": "b", "LOCKSTEP_PASSWORD": PASSWORD}, ("b", PASSWORD)),
        ("h:1", NO_LOGIN, {"LOCKSTEP_PASSWORD": PASSWORD}, None),
        ("lockstep://a@h:1/?password_file={file}", NO_LOGIN, {"LOCKSTEP_PASSWORD": "other password"}, ("a", "from the file")),
        ("h:1", NO_LOGIN, {"LOCKSTEP_USER": "b", "LOCKSTEP_PASSWORD_FILE": "{file}"}, ("b", "from the file")),
        ("lockstep://a@h:1", Login(None, PASSWORD), {}, ("a", PASSWORD)),
        ("lockstep://%E6%97%A5@h:1/?tls=off", Login(None, PASSWORD), {}, ("日", PASSWORD)),
    ],
)
def test_login_comes_from_the_program_the_address_or_the_environment(
    tmp_path: Path, address: str, login: Login, environment: dict[str, str], expected: tuple[str, str] | None
) -> None:
    (tmp_path / "password").write_text("from the file\n")
    file = str(tmp_path / "password")
    parsed = ClusterAddress.parse(address.replace("{file}", file))
    assert ClusterAddress.parse(str(parsed)) == parsed == pickle.loads(pickle.dumps(parsed))
    security = parsed.security(login, {name: value.replace("{file}", file) for name, value in environment.items()})
    if expected is None:
        assert security is NO_SECURITY
        return
    assert security.credentials is not None
    assert security.credentials.user == expected[0]
    assert security.credentials.answer(CHALLENGE) == salted_password(expected[1], CHALLENGE.salt, CHALLENGE.iterations)
    assert PASSWORD not in repr(security) + repr(login) + str(parsed)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("lockstep://a:secret word@h:1", "a password is never part of it: use password_file=FILE or LOCKSTEP_PASSWORD"),
        ("lockstep://@h:1", "'' is not the name of a user"),
        ("lockstep://h:1/?password_file=x", "password_file without a user"),
        ("lockstep://a@h:1/?password_file=x&password_file=y", "unexpected password_file=y"),
        ("lockstep://a@h:1/?password_file=", "unexpected password_file="),
    ],
)
def test_invalid_login_in_an_address_is_refused(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        ClusterAddress.parse(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer])
@pytest.mark.parametrize(
    ("name", "value"),
    [("nameserver", "i:2"), ("tls", True), ("tls", False), ("user", "shop"), ("password", PASSWORD), ("login_optional", True)],
)
def test_setting_of_connections_belongs_to_a_client_that_is_given(kind: Any, name: str, value: object) -> None:
    client = Client("h:1", user="billing", password=PASSWORD)
    with pytest.raises(ConfigError, match=f"<Client h:1> and {name}=…: give one of them; a client has its {name} already") as caught:
        kind("g", client=client, **{name: value})
    assert PASSWORD not in str(caught.value)


def test_function_that_returns_no_text_is_an_error_without_its_value() -> None:
    security = ClusterAddress.parse("h:1").security(Login("a", lambda: b"secret"))  # type: ignore[arg-type, return-value]
    assert security.credentials is not None
    with pytest.raises(ConfigError, match="the function for the password of a returned bytes: expected a text") as caught:
        security.credentials.answer(CHALLENGE)
    assert "secret" not in str(caught.value)
