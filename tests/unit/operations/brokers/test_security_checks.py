"""Each finding of `lockstep doctor` about TLS, users and admin ports: when it is reported, and that it names the next step."""

from dataclasses import replace
from typing import Any

import pytest

from lockstep.operations.brokers import security_checks
from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.brokers.security_checks import SecuredServer
from lockstep.protocol.bodies import BrokerSetting, BrokerSettings, UserLogin
from lockstep.runtime.configuration.reported_settings import setting_text
from lockstep.runtime.security.scram import ITERATIONS_MIN, Verifier
from lockstep.runtime.security.users import parse_users

NOW_MS = 1_700_000_000_000  # 2023-11-14
SECURED = {"listen": ("0.0.0.0:1",), "tls_cert": "server.pem", "security": "users.toml", "users": "required", "insecure": False}


def server(where: str, digest: str | None = "0a0a0a0a", **settings: Any) -> SecuredServer:
    """Return a server that is secured but for these settings."""
    rows = [BrokerSetting(name, "", "", setting_text(value)) for name, value in {"tls": None, **SECURED, **settings}.items()]
    return SecuredServer.of(where, BrokerSettings(tuple(rows), digest))


def problems(findings: list[Finding]) -> list[tuple[str, str, str]]:
    for finding in findings:
        assert (finding.problem is None) == (finding.step == ""), "who names a problem names the next step"
    return [(finding.check, finding.where, finding.problem) for finding in findings if finding.problem is not None]


OPEN = {"tls_cert": None, "security": None, "users": "required", "insecure": True}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, []),
        ({"listen": ("127.0.0.1:1",), **OPEN}, []),
        ({"listen": ("a=127.0.0.1:1", "b=10.0.0.1:2"), "tls": "allow"}, ["10.0.0.1:2 accepts connections without TLS"]),
        ({"tls": "off"}, ["0.0.0.0:1 accepts connections without TLS"]),
        ({"tls_cert": None}, ["accepts connections without TLS"]),
        ({"users": "optional"}, ["0.0.0.0:1 serves other machines without a login"]),
        (OPEN, ["without TLS", "without a login"]),
        ({"admin_listen": "0.0.0.0:5"}, []),
        ({"admin_listen": "127.0.0.1:5", "insecure": "anonymous"}, []),
        ({"admin_listen": "0.0.0.0:5", "insecure": "plaintext"}, []),
        ({"admin_listen": "0.0.0.0:5", "insecure": "anonymous", "admin_token_file": "token"}, []),
        ({"admin_listen": "0.0.0.0:5", "insecure": "anonymous"}, ["at 0.0.0.0:5 without a token"]),
        ({"admin_listen": "0.0.0.0:5", "insecure": True}, ["at 0.0.0.0:5 without a token"]),
        ({"security_last_good": False}, []),
        ({"security_last_good": True}, ["has the users of the copy in its store, and does not read "]),
    ],
)
def test_server_that_requires_less_than_others_is_a_problem(settings: dict[str, Any], words: list[str]) -> None:
    found = problems(security_checks.check_servers([server("n1"), server("broker-a", **settings)]))
    assert [where for _, where, _ in found] == ["broker-a"] * len(words)
    assert all(word in problem for word, (_, _, problem) in zip(words, found, strict=True)), found


def test_server_that_cannot_read_its_files_is_a_problem() -> None:
    failed = replace(server("broker-a", security_last_good=True), reload_failure="a.pem: is a directory")
    found = problems(security_checks.check_servers([server("n1"), failed]))
    assert found == [("files read", "broker-a", "what it read before remains in force: a.pem: is a directory")]


def test_cluster_without_tls_and_users_is_not_examined() -> None:
    assert security_checks.check_servers([server(where, None, **OPEN, admin_listen="0.0.0.0:5") for where in ("n1", "broker-a")]) == []


@pytest.mark.parametrize(
    ("digests", "problem"),
    [
        (["0a", "0a"], None),
        (["0a", None], None),
        (["0b", "0a", "0b"], "servers have different files: 0a at s1; 0b at s0, s2"),
    ],
)
def test_servers_with_different_files_of_users_are_a_problem(digests: list[str | None], problem: str | None) -> None:
    found = problems(security_checks.check_servers([server(f"s{number}", digest) for number, digest in enumerate(digests)]))
    assert found == ([] if problem is None else [("one file of users", "cluster", problem)])


SIGNED = "shop (last from 10.0.0.7:5, 2023-11-14T22:13:20.000Z)"


@pytest.mark.parametrize(
    ("settings", "kinds", "named"),
    [
        ({"tls": "allow"}, [(False, True), (True, False)], None),
        ({"tls_cert": None, "insecure": "plaintext"}, [(True, False), (True, True)], SIGNED),
        ({"tls": "allow"}, [(True, True)] * 6, f"{', '.join([SIGNED] * 5)} and 1 more users"),
        ({"tls": "allow", "listen": ("127.0.0.1:1",)}, [(True, True)], None),
        ({"tls": "allow", "security": None}, [(True, True)], None),
    ],
)
def test_signed_requests_without_tls_from_other_machines_are_a_problem(
    settings: dict[str, Any], kinds: list[tuple[bool, bool]], named: str | None
) -> None:
    logins = tuple(UserLogin("shop", NOW_MS, f"10.0.0.{6 + exposed}:5", signed, exposed, 1) for signed, exposed in kinds)
    found = problems(security_checks.check_servers([server("n1"), replace(server("broker-a", **settings), logins=logins)]))
    told = [problem for check, _, problem in found if check == "signed requests by TLS"]
    begin = "who reads the network can send signed requests again: without TLS came those of "
    assert told == ([] if named is None else [begin + named])


CERTIFICATE = {
    "notAfter": "Dec 15 00:00:00 2023 GMT",
    "subjectAltName": (
        ("DNS", "Broker-a.example"),
        ("DNS", "*.pods.example"),
        ("IP Address", "10.0.0.5"),
        ("IP Address", "0:0:0:0:0:0:0:1"),
    ),
}


@pytest.mark.parametrize(
    ("ends", "addresses", "words"),
    [
        ("Dec 15 00:00:00 2023 GMT", [], []),
        ("Dec 13 00:00:00 2023 GMT", [], ["its certificate ends in 28 days: Dec 13 00:00:00 2023 GMT"]),
        ("Nov 13 00:00:00 2023 GMT", [], ["ends in 0 days"]),
        (None, ["broker-a.example:1", "b.pods.example:1", "10.0.0.5:1", "[::1]:1"], []),
        (
            None,
            ["pods.example:1", "a.b.pods.example:1"],
            ["is not for a.b.pods.example, pods.example, where clients connect"],
        ),
        (None, ["10.0.0.6:1"], ["is not for 10.0.0.6"]),
    ],
)
def test_certificate_that_ends_soon_or_lacks_a_name_is_a_problem(ends: str | None, addresses: list[str], words: list[str]) -> None:
    certificate = CERTIFICATE if ends is None else {**CERTIFICATE, "notAfter": ends}
    found = problems(security_checks.check_certificate("broker-a", certificate, addresses, NOW_MS))
    assert len(found) == len(words)
    assert all(word in problem for word, (_, _, problem) in zip(words, found, strict=True)), found


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ("super = true", []),
        ('role = "operator"', []),
        ('role = ["producer", "consumer"]\ntopics = ["*"]\ngroups = ["*"]', []),
        ('allow = ["Pub,Sub,Create,Update,Delete,Get,List topic:*", "Sub,Update,Delete,Get group:*"]', ["may do everything"]),
        ('role = ["operator", "consumer", "producer"]\ntopics = ["*"]\ngroups = ["*"]', ["may do everything"]),
        ('brokers = ["broker-*"]', []),
        ('brokers = ["*"]', ["register brokers of every name"]),
    ],
)
def test_user_with_all_rights_who_is_no_super_user_is_a_problem(rights: str, words: list[str]) -> None:
    verifier = Verifier.of("correct horse", b"0123456789abcdef", ITERATIONS_MIN)
    users = parse_users(f'key = "{"0a" * 32}"\n[user.shop]\nverifier = "{verifier}"\n{rights}'.encode())
    found = problems(security_checks.check_users("users.toml", users, [server("n1", users.digest), server("n2", None)]))
    assert [(check, where) for check, where, _ in found] == [("rights of a user", "shop")] * len(words)
    assert all(word in problem for word, (_, _, problem) in zip(words, found, strict=True)), found
    differing = problems(security_checks.check_users("users.toml", users, [server("n1", "0b"), server("n2", users.digest)]))
    assert differing[0] == ("users in force", "users.toml", f"the file has the digest {users.digest}, and servers have 0b")
