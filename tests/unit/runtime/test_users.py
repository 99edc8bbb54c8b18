"""The file of users: what a server takes, and in which words it refuses the rest."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security import watched_files
from lockstep.runtime.security.scram import ITERATIONS_MIN, Verifier
from lockstep.runtime.security.user_limits import NO_LIMITS, UserLimits
from lockstep.runtime.security.users import check_user_name, parse_users, read_users

KEY = 'key = "' + "0a" * 32 + '"\n'
ONE, OTHER = (str(Verifier.of(f"password {n}", b"salt" * 4, ITERATIONS_MIN)) for n in range(2))


def user(text: str = f'verifier = "{ONE}"', name: str = "billing") -> bytes:
    return f"{KEY}[user.{name}]\n{text}\n".encode()


def test_users_are_parsed() -> None:
    found = parse_users(
        user(f'verifier = ["{ONE}", "{OTHER}"]\nfrom = ["10.0.0.0/8", "::1/128"]')
        + f'[user.b]\nverifier = "{ONE}"\nsuper = true\nbrokers = ["broker-a"]'.encode()
    )
    billing = found.users["billing"]
    assert [str(each) for each in billing.verifiers] == [ONE, OTHER]
    assert {place: billing.may_come_from(place) for place in ("10.1.2.3", "[::1]", "::ffff:10.0.0.1", "192.0.2.1", "unknown")} == {
        "10.1.2.3": True,
        "[::1]": True,
        "::ffff:10.0.0.1": True,
        "192.0.2.1": False,
        "unknown": False,
    }
    assert found.users["b"].may_come_from("unknown")
    assert [(each.rights.is_super, each.brokers) for each in found.users.values()] == [(False, ()), (True, ("broker-a",))]
    assert found.is_valid("billing", billing.verifiers[1], "10.0.0.1")
    assert not found.is_valid("b", billing.verifiers[1], "10.0.0.1")
    assert not found.is_valid("nobody", billing.verifiers[0], "10.0.0.1")
    assert len(found.digest) == 8


def test_limits_are_parsed_and_users_without_them_cost_no_look() -> None:
    limits = 'limits = { connections = 5, bytes_in_per_s = "20MiB", bytes_out_per_s = "7 B", requests_per_s = "20000", producer_ids = 1 }'
    found = parse_users(user(f'verifier = "{ONE}"\n{limits}') + f'[user.b]\nverifier = "{ONE}"\nlimits = {{}}'.encode())
    assert found.limited == {"billing": UserLimits(5, 20_000, 20 << 20, 7, None, 1)}
    assert found.users["b"].limits == NO_LIMITS


def test_unknown_user_gets_a_verifier_that_survives_an_edit_of_the_file() -> None:
    before, after = parse_users(user()), parse_users(user(name="other"))
    assert before.digest != after.digest
    assert before.verifiers("nobody") == after.verifiers("nobody")
    assert before.verifiers("nobody")[0] not in before.users["billing"].verifiers


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff", "it is not TOML"),
        (b"key = ", "it is not TOML"),
        (b"", "it is empty: copy the file of another server"),
        (b'key = "00"', "key: expected 64 hexadecimal digits"),
        (f"{KEY}users = 1".encode(), "unknown key 'users': expected key and user"),
        (f"{KEY}user = 1".encode(), r"expected tables \[user.NAME\]"),
        (f"{KEY}[user]\nbilling = 1".encode(), "user.billing: expected a table"),
        (user("verifyer = 1"), "user.billing: unknown key 'verifyer': expected verifier, secret, from"),
        (user(""), "user.billing: verifier is missing: `lockstep user passwd billing` makes it"),
        (user("verifier = 1"), "user.billing: verifier: expected a text or a list of texts"),
        (user('verifier = "inline text"'), "user.billing: verifier is not a verifier"),
        (user(f'verifier = ["{ONE}", "{Verifier.of("password 3", b"other salt")}"]'), "differ in salt or iterations"),
        (user(f'verifier = "{ONE}"\nfrom = ["10.0.0.1/8"]'), "user.billing: from: 10.0.0.1/8 has host bits set: expected networks"),
        (user(f'verifier = "{ONE}"\nsuper = "yes"'), "user.billing: super: expected true or false"),
        (user(f'verifier = "{ONE}"\nbrokers = [1]'), "user.billing: brokers: expected a text or a list of texts"),
        (user(f'verifier = "{ONE}"\nbrokers = "b*c"'), r"user.billing: brokers: 'b\*c': expected a name, or its beginning"),
        (user(f'verifier = "{ONE}"\nrole = "viewer"\ngroups = "a b"'), "user.billing: groups: 'a b': expected a name"),
        (user(f'verifier = "{ONE}"\nlimits = 1'), "user.billing: limits: expected a table"),
        (
            user(f'verifier = "{ONE}"\nlimits = {{ topics = 1 }}'),
            "user.billing: limits: unknown key 'topics': expected conn",
        ),
        *(
            (user(f'verifier = "{ONE}"\nlimits = {{ {entry} }}'), f"user.billing: limits.{words}")
            for entry, words in [
                ("connections = -1", "connections: '-1': expected a number from 1 to 1125899906842624"),
                ("held_pulls = 0", "held_pulls: '0': expected a number"),
                ("held_pulls = 1.5", "held_pulls: '1.5': expected a number"),
                ("requests_per_s = true", "requests_per_s: 'True': expected a number"),
                ("requests_per_s = '1MiB'", "requests_per_s: '1MiB': expected a number"),
                ("bytes_in_per_s = '20MB'", "bytes_in_per_s: '20MB': expected a number of bytes, as 1000000"),
                ("bytes_out_per_s = '-1MiB'", "bytes_out_per_s: '-1MiB': expected a number of bytes"),
                ("bytes_out_per_s = '9999999GiB'", "bytes_out_per_s: '9999999GiB': expected a number of bytes"),
            ]
        ),
        (user(name='"a b"'), "'a b' is not the name of a user"),
    ],
)
def test_invalid_file_is_refused_with_the_user_and_the_key(content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_users(content)
    assert "inline text" not in str(caught.value)


@pytest.mark.parametrize("name", ["", " ", "a:b", "a@b", "a,b", "a=b", "x" * 128, "a\nb"])
def test_name_that_an_address_or_a_login_could_not_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a user"):
        check_user_name(name)
    assert check_user_name("日本-billing.2") == "日本-billing.2"


WRITABLE, READABLE = "others than its owner may write it", "others than its owner may read it"


@pytest.mark.parametrize(
    ("mode", "place", "words"),
    [
        (0o600, "directory", ""),
        (0o640, "directory", ""),
        (0o620, "directory", WRITABLE),
        (0o644, "directory", READABLE),
        (0o444, "directory", READABLE),
        *((mode, place, "") for mode in (0o444, 0o644) for place in ("secrets", "read-only")),
        *((0o664, place, WRITABLE) for place in ("secrets", "read-only")),
    ],
)
def test_file_that_others_may_read_or_write_is_refused_where_its_mode_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, place: str, words: str
) -> None:
    path = tmp_path / "users.toml"
    path.write_bytes(user())
    os.chmod(path, mode)
    if place == "secrets":
        monkeypatch.setattr(watched_files, "SECRETS_DIRECTORY", f"{tmp_path}/")
    if place == "read-only":
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    if not words:
        assert "billing" in read_users(str(path)).users
        return
    with pytest.raises(ConfigError, match=f"{words}: chmod 600"):
        read_users(str(path))
