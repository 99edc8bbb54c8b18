"""The address of a cluster as text: nameservers, and how connections are secured."""

import pickle
from pathlib import Path

import pytest

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.runtime.security.tls import Tls
from support.certificates import write_authority


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h:1;g:2", ClusterAddress(("h:1", "g:2"))),
        ("lockstep://h:1", ClusterAddress(("h:1",))),
        (" lockstep://h:1,g:2/ ", ClusterAddress(("h:1", "g:2"))),
        ("lockstep://[::1]:1/?tls=on", ClusterAddress(("[::1]:1",), Tls())),
        ("lockstep://h:1?tls=off", ClusterAddress(("h:1",))),
        ("lockstep://h:1/?tls_ca=/a%20b/ca", ClusterAddress(("h:1",), Tls(ca="/a b/ca"))),
        (
            "lockstep://h:1/?tls=on&tls_ca=a&tls_cert=b&tls_key=c&tls_server_name=d",
            ClusterAddress(("h:1",), Tls(ca="a", cert="b", key="c", server_name="d")),
        ),
    ],
)
def test_text_is_parsed_and_written(text: str, expected: ClusterAddress) -> None:
    found = ClusterAddress.parse(text)
    assert found == expected
    assert ClusterAddress.parse(str(found)) == found
    assert pickle.loads(pickle.dumps(found)) == found
    assert ClusterAddress.parse(found) is found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lockstep://", "no nameserver address"),
        ("lockstep://h", 'nameserver address "h": expected HOST:PORT'),
        ("lockstep://h:1/path", "invalid URL: expected lockstep://HOST:PORT"),
        ("lockstep://h:1/#x", "invalid URL"),
        ("lockstep://h:1/?tls=yes", "unexpected tls: expected tls=on, tls=off, and each of tls_ca"),
        ("lockstep://h:1/?tls_ca=a&tls_ca=b", "unexpected tls_ca:"),
        ("lockstep://h:1/?ca=a", "unexpected ca:"),
        ("lockstep://h:1/?tls_ca=", r"Tls\(ca=''\): expected a path"),
        ("lockstep://h:1/?tls_cert=a", "a certificate needs its key"),
        ("lockstep://h:1/?tls=off&tls_ca=a", "tls=off and tls_ca: leave one of them out"),
    ],
)
def test_invalid_text_is_refused_with_what_was_expected(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ClusterAddress.parse(text)


def test_tls_is_given_once() -> None:
    assert ClusterAddress.parse("h:1", True).tls == Tls()
    assert ClusterAddress.parse("h:1", False).tls is None
    assert ClusterAddress.parse(["h:1"], Tls(ca="a")).tls == Tls(ca="a")
    with pytest.raises(ConfigError, match="give one of them"):
        ClusterAddress.parse("lockstep://h:1/?tls=on", Tls(ca="a"))


def test_files_are_read_when_the_security_is_made(tmp_path: Path) -> None:
    address = ClusterAddress.parse(f"lockstep://h:1/?tls_ca={tmp_path / 'ca'}")
    with pytest.raises(ConfigError, match="ca: no such file or directory"):
        address.security()
    write_authority(tmp_path / "ca")
    assert address.security().tls is not None
    assert ClusterAddress.parse("h:1").security() is NO_SECURITY


def test_path_of_any_bytes_is_part_of_an_address() -> None:
    address = ClusterAddress(("h:1",), Tls(ca="/a b/\udcff&x=y.pem"), "u", "/p/\udcfe%41")
    assert ClusterAddress.parse(str(address)) == address
    assert str(address).isascii()
