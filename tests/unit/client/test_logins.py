"""The user and the password of a client: where they come from, and where they are never shown."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client import Client, Producer, PullConsumer, PushConsumer
from lockstep.client.sync import Producer as BlockingProducer
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import NO_LOGIN, ClusterAddress, Login
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.runtime.security.scram import Challenge, salted_password
from lockstep.runtime.security.tls import Tls

PASSWORD = "correct horse"
CHALLENGE = Challenge(b"salt" * 4, 4_096)
MADE = {
    "Client": lambda address="h:1", **login: Client(address, **login),
    "Producer": lambda address="h:1", **login: Producer("g", nameserver=address, **login),
    "PushConsumer": lambda address="h:1", **login: PushConsumer("g", nameserver=address, **login),
    "PullConsumer": lambda address="h:1", **login: PullConsumer("g", nameserver=address, **login),
    "sync.Producer": lambda address="h:1", **login: BlockingProducer("g", nameserver=address, **login),
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCKSTEP_URL", "LOCKSTEP_NAMESERVER", "LOCKSTEP_USER", "LOCKSTEP_PASSWORD", "LOCKSTEP_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", MADE)
def test_every_client_takes_a_user_and_a_password_and_shows_no_password(name: str) -> None:
    made: list[Any] = [MADE[name](user="billing", password=PASSWORD), MADE[name]("lockstep://billing:secret@h:1")]
    for text in [repr(each) + repr(each.config) for each in made]:
        assert PASSWORD not in text
        assert "secret" not in text
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
        ("lockstep://a:of-the-url@h:1", NO_LOGIN, {"LOCKSTEP_PASSWORD": PASSWORD}, ("a", "of-the-url")),
        ("lockstep://a:of-the-url@h:1", Login(None, PASSWORD), {}, ("a", PASSWORD)),
        ("lockstep://%E6%97%A5@h:1/?tls=off", Login(None, PASSWORD), {}, ("日", PASSWORD)),
    ],
)
def test_login_comes_from_the_program_the_address_or_the_environment(
    tmp_path: Path, address: str, login: Login, environment: dict[str, str], expected: tuple[str, str] | None
) -> None:
    (tmp_path / "password").write_text("from the file\n")
    file = str(tmp_path / "password")
    parsed = ClusterAddress.parse(address.replace("{file}", file), may_have_password=True)
    assert ClusterAddress.parse(str(parsed)) == replace(parsed, password=None)
    assert parsed == pickle.loads(pickle.dumps(parsed))
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
        (
            "lockstep://a:secret word@h:1",
            "others may see a password that it has: use password_file=FILE, or for clients",
        ),
        ("lockstep://a%3Asecret@h:1", "its user has an encoded colon"),
        ("lockstep://a:sec/ret@h:1", "invalid URL: expected .* of user and password as %XX"),
        ("lockstep://a:sec?ret@h:1", "invalid URL"),
        ("lockstep://a:secret%zz@h:1", "invalid URL: expected .* % of user and password as %XX"),
        ("lockstep://a:secret@b@h:1", "invalid URL"),
        ("lockstep://a%3Asecret%40h:1", "nameserver address with @: expected HOST:PORT, or one URL"),
        ("LOCKSTEP://a:secret@h:1", "nameserver address with @"),
        ("a:secret@h:1;b:2", "nameserver address with @"),
        ("lockstep://a@h:1/?password=secret", "unexpected password: expected"),
        ("lockstep://a:secret@h:1/?password_file=x", "password_file and a password: leave one of them out"),
        ("lockstep://@h:1", "'' is not the name of a user"),
        ("lockstep://h:1/?password_file=x", "password_file without a user"),
        ("lockstep://a@h:1/?password_file=x&password_file=y", "unexpected password_file:"),
        ("lockstep://a@h:1/?password_file=", "unexpected password_file:"),
    ],
)
def test_invalid_login_in_an_address_is_refused(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        ClusterAddress.parse(address)
    assert "secret" not in str(caught.value)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.sampled_from(["a", "日", "a%b"]))
def test_url_of_a_program_has_any_password_percent_encoded_and_nothing_shows_it(password: str, user: str) -> None:
    address = ClusterAddress.parse(f"lockstep://{quote(user)}:{quote(password, safe='')}@h:1/?tls=on", may_have_password=True)
    assert address == ClusterAddress(("h:1",), Tls(), user, password=password)
    without = ClusterAddress(("h:1",), Tls(), user)
    assert (str(address), repr(address)) == (str(without), repr(without))
    with pytest.raises(ConfigError) as caught:
        ClusterAddress.parse(address, Tls(ca="x"))
    assert str(caught.value).startswith(f"nameserver={str(without)!r} and tls=Tls(")


@pytest.mark.parametrize(
    ("url", "nameserver", "expected"),
    [
        ("", "", None),
        ("", "h:1", ClusterAddress(("h:1",))),
        ("lockstep://a:secret@h:1", "", ClusterAddress(("h:1",), user="a", password="secret")),
        ("lockstep://a:secret@h:1", "lockstep://a@h:1", ClusterAddress(("h:1",), user="a", password="secret")),
        ("lockstep://h:1", "h:1", ClusterAddress(("h:1",))),
        ("lockstep://a:secret@h:1", "h:1", r"LOCKSTEP_URL \(lockstep://a@h:1/\) and LOCKSTEP_NAMESERVER \(h:1\) differ: unset one of them"),
        ("secret@h:1", "", "LOCKSTEP_URL is not a URL: expected lockstep://"),
        ("lockstep://a:secret@h", "", 'LOCKSTEP_URL: nameserver address "h": expected HOST:PORT'),
        ("", "lockstep://a:secret@h:1", "LOCKSTEP_NAMESERVER: nameserver URL: others may see a password"),
    ],
)
def test_environment_has_an_address(url: str, nameserver: str, expected: ClusterAddress | str | None) -> None:
    environment = {"LOCKSTEP_URL": url, "LOCKSTEP_NAMESERVER": nameserver}
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected) as caught:
            ClusterAddress.of_environment(environment)
        assert "secret" not in str(caught.value)
    else:
        assert ClusterAddress.of_environment(environment) == expected


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
