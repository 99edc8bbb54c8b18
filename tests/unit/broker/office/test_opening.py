"""URLs of registers: what they open, and what is wrong with others."""

import sys
from pathlib import Path

import pytest

from lockstep.broker.office.opening import RegisterUrl, open_register
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.runtime.security.tls import Tls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("etcd://h1:2379,h2:2379,h3:2379", RegisterUrl("etcd", ("h1:2379", "h2:2379", "h3:2379"))),
        ("etcd://h1:2379,h1:2379/", RegisterUrl("etcd", ("h1:2379",))),
        ("etcd://[::1]:2379/shop/lockstep/", RegisterUrl("etcd", ("[::1]:2379",), "shop/lockstep")),
        ("etcd://ops@h:1/?password_file=/run/pass%20word", RegisterUrl("etcd", ("h:1",), user="ops", password_file="/run/pass word")),
        ("etcds://h:1", RegisterUrl("etcds", ("h:1",), tls=Tls())),
        ("etcds://h:1/p?ca=a&cert=b&key=c", RegisterUrl("etcds", ("h:1",), "p", tls=Tls(ca="a", cert="b", key="c"))),
        (" witness://h:9878/ ", RegisterUrl("witness", ("h:9878",))),
    ],
)
def test_url_says_where_the_register_is(text: str, expected: RegisterUrl) -> None:
    assert RegisterUrl.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "register '': expected etcd://HOST:PORT"),
        ("10.0.0.1:2379", "expected etcd://HOST:PORT,HOST:PORT/PREFIX, etcds://… for TLS, or witness://HOST:PORT"),
        ("http://h:2379", "'http://h:2379': expected etcd://"),
        ("zookeeper://h:2181", "expected etcd://"),
        ("etcd://", "'' is not an address"),
        ("etcd://h:1,,h:2", "'' is not an address"),
        ("etcd://h", "'h' is not an address"),
        ("etcd://h:0", "'h:0' is not an address"),
        ("etcd://h:2379/a b", "the prefix 'a b' has other characters"),
        ("etcd://h:1/%zz", "as %XX"),
        ("etcd://h:1/?timeout=5", "unexpected 'timeout': expected each of ca, cert, key, server_name, password_file once"),
        ("etcds://h:1/?ca=a&ca=b", "unexpected 'ca'"),
        ("etcds://h:1/?ca=", "unexpected 'ca'"),
        ("etcd://h:1/?ca=a", "ca is of TLS: use etcds://"),
        ("etcds://h:1/?cert=a", "a certificate needs its key"),
        ("etcd://ops@h:1", "a login is a user and a password_file"),
        ("etcd://h:1/?password_file=a", "a login is a user and a password_file"),
        ("etcd://ops:hunter2@h:1", "others may see the password that it has: give it by password_file=FILE"),
        ("etcd://ops:hunt/er2@h:1", "register: expected"),
        ("witness://h:1,h:2", "2 witnesses: two would be two registers"),
        ("witness://ops@h:1", "leave a user out"),
        ("witness://h:1/shop", "leave a prefix out"),
        ("witness://h:1/?ca=a", "leave ca out"),
    ],
)
def test_invalid_url_is_explained_and_no_password_shown(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        RegisterUrl.parse(text)
    assert "hunt" not in str(error.value)


def test_certificate_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.pem: no such file"):
        open_register(RegisterUrl.parse(f"etcds://h:1/?ca={tmp_path}/nowhere.pem"), "shop", "broker-a", Host.real(), NO_SECURITY)


def test_etcd_without_its_extra_is_explained_and_a_witness_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lockstep.broker.office.etcd", "lockstep.runtime.connections.http_client"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(ConfigError, match=r"h11 is not installed: it belongs to the extra \[ha\]; run: pip install 'lockstep-mq\[ha\]'"):
        open_register(RegisterUrl.parse("etcd://h:1"), "shop", "broker-a", Host.real(), NO_SECURITY)
    open_register(RegisterUrl.parse("witness://h:1"), "shop", "broker-a", Host.real(), NO_SECURITY)
