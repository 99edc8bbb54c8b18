"""Secrets of AccessKeys: where they are, when they are read again, and which requests they sign."""

import os
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.access_keys import is_signed
from lockstep.runtime.security.users import parse_users, watch_users
from lockstep.runtime.security.watched_files import LOOK_MS, SETTLE_MS
from support.access_keys import SECRET, signed, write_signers

KEY = f'key = "{"0a" * 32}"\n'
NAMES = st.text("aZ_09", min_size=1, max_size=6) | st.sampled_from(["OnsChannel", "topic", "ünïcode"])
FIELDS = st.dictionaries(NAMES, st.text(max_size=6) | st.integers() | st.booleans(), max_size=6)


def test_signature_is_that_of_rocketmq() -> None:
    fields = {"topic": "TopicTest", "queueId": 0, "AccessKey": "rocketmq2", "Signature": "chWLLvYcsGW0hhV0uKh0Ylw0XSk="}
    assert is_signed([b"other secret", b"12345678"], fields, b"body")
    assert not is_signed([b"other secret"], fields, b"body")
    assert not is_signed([], fields, b"body")


@given(FIELDS, st.binary(max_size=20), st.data())
def test_request_is_signed_only_as_it_was_sent(fields: dict[str, Any], body: bytes, data: st.DataObject) -> None:
    sent = signed(fields, body)
    assert is_signed([SECRET.encode()], sent, memoryview(body))
    assert not is_signed([SECRET.encode()], sent, body + b"x")
    name = data.draw(st.sampled_from(sorted(sent)))
    assert not is_signed([SECRET.encode()], {**sent, name: f"{sent[name]}x"}, body)


SOMETIMES = ("_UNIQUE_KEY_QUERY", "__ZONE_NAME", "SecurityToken")


@pytest.mark.parametrize("without", [each for count in range(4) for each in combinations(SOMETIMES, count)])
def test_fields_that_clients_sign_differently_count_with_and_without(without: tuple[str, ...]) -> None:
    out = (*without, "__ZONE_MODE") if "__ZONE_NAME" in without else without
    sent = signed({"key": "k", **dict.fromkeys(SOMETIMES, "v"), "__ZONE_MODE": "m"}, b"body", without=out)
    assert is_signed([SECRET.encode()], sent, b"body")
    assert not is_signed([SECRET.encode()], signed({"key": "k", "topic": "t"}, b"body", without=["topic"]), b"body")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (f'"{SECRET}"', r"a secret is not written into this file: expected \{ file = \"PATH\" \} or \{ env = \"NAME\" \}"),
        (f'[{{ file = "x" }}, "{SECRET}"]', "a secret is not written into this file"),
        ("7", "secret: expected {"),
        ('{ path = "x" }', "secret: expected {"),
        ('{ file = "x", env = "X" }', "secret: expected {"),
        ('{ file = "" }', "secret: expected {"),
        ("{ env = 1 }", "secret: expected {"),
    ],
)
def test_secret_that_is_not_a_place_is_refused_and_not_shown(value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"user.billing: .*{words}") as caught:
        parse_users(f"{KEY}[user.billing]\nsecret = {value}\n".encode())
    assert SECRET not in str(caught.value)


def users_with(tmp_path: Path, secret: str) -> str:
    path = tmp_path / "users.toml"
    path.touch(0o600)
    path.write_text(f"{KEY}[user.billing]\nsecret = {secret}\n")
    return str(path)


def test_secrets_come_from_files_beside_the_users_and_elsewhere_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BILLING_SECRET", "value of a variable")
    for name in ("near.secret", "far.secret"):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_bytes(f"\ufeffvalue of {name}\r\nmore\n".encode())
    sources = f'[{{ file = "near.secret" }}, {{ file = "{tmp_path}/far.secret" }}, {{ env = "BILLING_SECRET" }}]'
    users = watch_users(users_with(tmp_path, sources)).value
    assert users.secrets == {"billing": (b"value of near.secret", b"value of far.secret", b"value of a variable")}
    assert users.users["billing"].verifiers == ()
    assert len(users.verifiers("billing")) == 1, "a login by password finds one that no password has"
    assert "value of" not in repr(users)


@pytest.mark.parametrize(
    ("source", "content", "mode", "words"),
    [
        ('{ env = "NO_SUCH_VARIABLE" }', b"", 0o600, "user.billing: secret: the variable NO_SUCH_VARIABLE is not set"),
        ('{ file = "other" }', b"", 0o600, "other: no such file or directory"),
        ('{ file = "secret" }', SECRET.encode(), 0o644, "others than its owner may read it: chmod 600"),
        ('{ file = "secret" }', b"123456\n", 0o600, "a secret of 6 characters: expected 7 to 256"),
        ('{ file = "secret" }', b"x" * 257, 0o600, "a secret of 257 characters"),
        ('{ file = "secret" }', b"\xff" * 8, 0o600, "its first line is not UTF-8"),
    ],
)
def test_secret_that_cannot_be_used_is_named(tmp_path: Path, source: str, content: bytes, mode: int, words: str) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_bytes(content)
    os.chmod(tmp_path / "secret", mode)
    with pytest.raises(ConfigError, match=words) as caught:
        watch_users(users_with(tmp_path, source))
    assert SECRET not in str(caught.value)


def test_secrets_are_watched_as_the_file_of_users_is(tmp_path: Path) -> None:
    path = write_signers(tmp_path / "users.toml", {"billing": "first secret"})
    secret = tmp_path / "billing.secret"
    watched = watch_users(path)
    assert watched.look(0) == ()
    secret.write_text("second secret")
    assert watched.look(0) == (str(secret),)
    assert watched.value.secrets["billing"] == (b"second secret",)
    secret.unlink()
    assert (watched.look(0), watched.failure) == ((), None), "it may be being replaced"
    assert watched.look(SETTLE_MS) == ()
    assert watched.failure == f"{path}: user.billing: secret: {secret}: no such file or directory"
    assert watched.value.secrets["billing"] == (b"second secret",), "what was read before remains in force"
    users_with(tmp_path, '{ file = "other.secret" }')
    (tmp_path / "other.secret").touch(0o600)
    (tmp_path / "other.secret").write_text("third secret")
    assert watched.look(SETTLE_MS + LOOK_MS) == (path, str(tmp_path / "other.secret"))
    assert (watched.value.secrets["billing"], watched.failure) == ((b"third secret",), None)
    (tmp_path / "other.secret").write_text("fourth secret")
    assert watched.look(0) == (str(tmp_path / "other.secret"),), "the file that is named now is watched"
