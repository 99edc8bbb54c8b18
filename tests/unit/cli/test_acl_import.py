"""`lockstep acl import`: RocketMQ's plain_acl.yml as users of ours, with the same rights and without open addresses."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.cli import main as cli
from lockstep.runtime.security.rights import Rule
from lockstep.runtime.security.users import Users, watch_users

PLAIN_ACL = """\
globalWhiteRemoteAddresses:
accounts:
- accessKey: RocketMQ
  secretKey: 01234567
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=PUB
  - groupD=SUB
- accessKey: open
  secretKey: "quoted # secret"
  defaultTopicPerm: PUB|SUB
  topicPerms:
  - topicA=DENY
  - topicC=SUB
  - '%RETRY%groupE=SUB'
- accessKey: rocketmq2
  secretKey: 12345678
  admin: true
"""
Import = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Import:
    def run(content: str, *arguments: str, code: int = 0) -> str:
        """Import a file. Return what the command prints, also to stderr."""
        (tmp_path / "plain_acl.yml").write_text(content)
        with pytest.raises(SystemExit) as ended:
            cli.main(["acl", "import", str(tmp_path / "plain_acl.yml"), "--security", str(tmp_path / "etc" / "users.toml"), *arguments])
        found = "".join(capsys.readouterr())
        assert (ended.value.code or 0) == code, found
        return found

    return run


def imported(tmp_path: Path) -> Users:
    return watch_users(str(tmp_path / "etc" / "users.toml")).value


MAY = {
    "RocketMQ": {
        "Pub topic:topicB": True,
        "Sub topic:topicB": True,
        "Sub topic:topicC": True,
        "Sub group:groupB": True,
        "Sub group:groupD": True,
        "Sub group:other": True,
        "Sub topic:%RETRY%groupD": True,
        "Pub topic:topicA": False,
        "Sub topic:topicA": False,
        "Pub topic:topicC": False,
        "Sub group:groupA": False,
        "Sub group:groupC": False,
        "Sub topic:other": False,
        "Create topic:topicB": False,
    },
    "open": {
        "Pub topic:other": True,
        "Sub topic:topicC": True,
        "Sub group:groupE": True,
        "Pub topic:topicA": False,
        "Sub topic:topicA": False,
        "Pub topic:topicC": False,
        "Sub group:other": False,
    },
    "rocketmq2": {"Delete topic:other": True},
}


def test_accounts_have_the_rights_that_they_had(tmp_path: Path, run: Import) -> None:
    told = run(PLAIN_ACL)
    users = imported(tmp_path)
    assert users.secrets == {"RocketMQ": (b"01234567",), "open": (b"quoted # secret",), "rocketmq2": (b"12345678",)}
    for name, rules in MAY.items():
        rights = users.users[name].rights
        found = {rule: rights.decide(parsed.actions[0], parsed.kind, parsed.name)[0] for rule in rules if (parsed := Rule.parse(rule))}
        assert found == rules, name
        assert f"Added user {name} to {tmp_path}/etc/users.toml, with its secret in {tmp_path}/etc/{name}.secret." in told
        assert stat.S_IMODE(os.stat(tmp_path / "etc" / f"{name}.secret").st_mode) == 0o600
    text = (tmp_path / "etc" / "users.toml").read_text()
    assert 'secret = {file = "RocketMQ.secret"}' in text
    assert not any(secret in text + told for secret in ("01234567", "quoted # secret", "12345678"))


OPEN = PLAIN_ACL.replace("Addresses:\n", "Addresses:\n- 10.10.103.*\n", 1).replace("Address:\n", "Address: 192.168.1.*\n", 1)


def test_addresses_that_need_no_signature_are_refused_or_left_out_and_never_become_networks(tmp_path: Path, run: Import) -> None:
    told = run(OPEN, code=2)
    for words in ("globalWhiteRemoteAddresses: 10.10.103.*", "account RocketMQ: whiteRemoteAddress 192.168.1.*", "--keep-open"):
        assert words in told
    assert not (tmp_path / "etc").exists()
    told = run(OPEN, "--keep-open")
    for words in ("globalWhiteRemoteAddresses: 10.10.103.*", "account RocketMQ: whiteRemoteAddress 192.168.1.*"):
        assert f"left out: {words}: requests from there need a signature now" in told
    assert [user.networks for user in imported(tmp_path).users.values()] == [(), (), ()]


def test_permissions_of_an_admin_are_left_out_with_a_word(tmp_path: Path, run: Import) -> None:
    told = run(f"{PLAIN_ACL}  topicPerms:\n  - topicA=DENY\n")
    assert "left out: account rocketmq2: topicPerms and groupPerms: it is an admin" in told


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("accounts:", "accounts: [", "it is not YAML: line"),
        ("accounts:", "acounts:", "the file: unknown key 'acounts'"),
        ("  admin: false", "  admin: maybe", "account RocketMQ: admin: expected true or false"),
        ("  admin: false", "  roles: x", "accounts, number 1: unknown key 'roles'"),
        ("secretKey: 01234567", "secretKey: 012345", "account RocketMQ: secretKey: expected a line of 7 to 256 characters"),
        ("accessKey: RocketMQ", "accessKey: a/b", "'a/b' is not the name of a user"),
        ("accessKey: rocketmq2", "accessKey: RocketMQ", "account RocketMQ: it occurs twice"),
        ("topicB=PUB|SUB", "topicB=READ", "account RocketMQ: topicPerms: topicB: 'READ': expected DENY, PUB, SUB"),
        ("topicB=PUB|SUB", "topic*=PUB", "account RocketMQ: topicPerms: 'topic*=PUB': expected NAME=PERMISSION, without a *"),
        ("topicB=PUB|SUB", "topicC=PUB", "account RocketMQ: topicPerms: 'topicC' occurs twice"),
        ("defaultTopicPerm: DENY", "defaultTopicPerm: ANY", "account RocketMQ: defaultTopicPerm: 'ANY': expected DENY"),
        ("  topicPerms:\n", "  topicPerms: topicB=PUB\n  groupPerms:\n", "expected a list"),
        (PLAIN_ACL, "!!python/object/apply:os.system ['touch x']", "the file: expected a table"),
        (PLAIN_ACL, "[" * 5_000, "it is not YAML"),
    ],
)
def test_file_that_says_something_else_is_refused_and_changes_nothing(tmp_path: Path, run: Import, old: str, new: str, words: str) -> None:
    told = run(PLAIN_ACL.replace(old, new, 1), code=2)
    assert f"{tmp_path}/plain_acl.yml: {words}" in told or words in told
    assert "1234567" not in told
    assert not (tmp_path / "etc").exists()


def test_user_or_secret_that_exists_is_not_replaced(tmp_path: Path, run: Import) -> None:
    run(PLAIN_ACL)
    assert "user RocketMQ exists" in run(PLAIN_ACL, code=1)
    (tmp_path / "etc" / "users.toml").unlink()
    (tmp_path / "etc" / "open.secret").write_text("another secret")
    assert f"{tmp_path}/etc/open.secret exists and has another secret: remove it first" in run(PLAIN_ACL, code=1)
    assert (tmp_path / "etc" / "open.secret").read_text() == "another secret"
    assert not (tmp_path / "etc" / "users.toml").exists()
