"""Settings of a broker: invalid values are rejected by name, and the values reach the parts that they configure."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.advertise import advertise
from lockstep.broker.config import BrokerConfig
from lockstep.broker.groups.coordination import CoordinationConfig
from lockstep.broker.store import StoreConfig
from lockstep.protocol.errors import ConfigError
from support.access_keys import SECRET, write_signers


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "a b"}, "illegal characters"),
        ({"cluster": ""}, "blank"),
        ({"listen": ("0.0.0.0:1",)}, "--insecure"),
        ({"listen": ("external=127.0.0.1:1",)}, "internal"),
        ({"listen": ("127.0.0.1",)}, "HOST:PORT"),
        ({"advertise": ("outside=host:1",)}, "'outside' is not a listener"),
        ({"nameserver": "nowhere"}, "HOST:PORT"),
        ({"flush": "later"}, "async"),
        ({"flush": None}, '"async" or "sync"'),
        ({"disconnect_grace_ms": 999}, "1,000"),
        ({"retention_hours": 0}, "retention_hours is 0: expected a number above 0"),
        ({"listen": ()}, "listen is \\(\\): expected a tuple of str with a length of at least 1"),
    ],
)
def test_invalid_settings_are_rejected(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig(**values)


def test_setting_that_does_not_exist_is_rejected() -> None:
    with pytest.raises(TypeError, match="'unknown'"):
        BrokerConfig(**{"unknown": 1})  # type: ignore[arg-type]


def test_nameserver_option_is_a_semicolon_separated_list() -> None:
    assert BrokerConfig(nameserver=" a:1; b:2 ;").nameservers() == ("a:1", "b:2")
    assert BrokerConfig().nameservers() == ()


def test_default_store_path_contains_the_broker_name() -> None:
    assert BrokerConfig(name="b").store_config().path == "lockstep-store/b"
    assert BrokerConfig(name="b", store="/x").store_config().path == "/x"


async def test_advertised_address_overrides_the_bound_one() -> None:
    bound = {"internal": "127.0.0.1:40001", "external": "127.0.0.1:40002"}
    reported = {"external": "localhost:0"}
    assert await advertise(bound, reported, ()) == {"internal": "127.0.0.1:40001", "external": "localhost:40002"}


@pytest.mark.parametrize("nameservers", [(), ("127.0.0.1:9876",)])
async def test_wildcard_address_is_never_advertised(nameservers: tuple[str, ...]) -> None:
    assert await advertise({"internal": "0.0.0.0:40001"}, {}, nameservers) == {"internal": "127.0.0.1:40001"}


async def test_wildcard_without_a_reachable_nameserver_is_rejected_with_the_next_step() -> None:
    with pytest.raises(ConfigError, match="--advertise"):
        await advertise({"internal": "0.0.0.0:40001"}, {}, ("host.invalid:9876",))


def test_timeouts_have_rocketmqs_values_for_classic_clients_and_ours_for_sessions() -> None:
    times = BrokerConfig().coordination()
    assert (times.disconnect_grace_ms, times.session_timeout_ms) == (3_000, 20_000)
    assert (times.classic_lock_ms, times.classic_member_ms, times.classic_restart_ms) == (60_000, 120_000, 30_000)


def test_options_in_operations_md_exist_with_the_documented_defaults() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
    named = re.findall(r"`--([a-z-]+)`(?: \||,) ([0-9][0-9,]*)", page)
    assert len(named) >= 8
    for option, default in named:
        assert f"{getattr(BrokerConfig(), option.replace('-', '_')):,}" == default.rstrip(","), option


def test_defaults_of_settings_and_of_the_configured_parts_are_equal() -> None:
    settings = BrokerConfig()
    coordination = settings.coordination()
    assert coordination == CoordinationConfig(broker_name=settings.name, limits=coordination.limits)
    # A store without a broker is not scrubbed.
    assert settings.store_config() == StoreConfig(path=settings.store_path(), scrub_bytes_per_s=settings.scrub_kib_per_s << 10)


def test_copy_of_the_users_has_its_secrets_beside_the_file_of_the_setting(tmp_path: Path) -> None:
    config = BrokerConfig(security=write_signers(tmp_path / "users.toml", {"billing": SECRET}), store=str(tmp_path / "store"))
    copy = Path(config.users_copy())
    copy.parent.mkdir(parents=True)
    (tmp_path / "users.toml").rename(copy)
    users = replace(config, security_last_good=True).open_security().users
    assert users is not None
    assert users.value.secrets == {"billing": (SECRET.encode(),)}
