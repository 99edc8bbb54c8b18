"""Certificates that are replaced while a server or a client runs: in any order, by any tool."""

import itertools
import os
import ssl
from pathlib import Path

import pytest

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.tls import ClientTls, ServerCertificate, ServerTls, Tls
from lockstep.runtime.security.watched_files import FILE_BYTES_MAX, LOOK_MS, SETTLE_MS, read_file
from support.certificates import write_authority, write_certificate


def shown(context: ssl.SSLContext) -> bytes:
    """Return the certificate that a context shows, by a handshake in memory."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(a, b), context.wrap_bio(b, a, server_side=True)
    for _ in range(2):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLError:  # it waits for the other end, or requires a certificate
                pass
    found = ends[0].getpeercert(binary_form=True)
    assert found is not None
    return found


@pytest.mark.parametrize("order", list(itertools.permutations(["cert", "key", "client_ca"])))
def test_files_are_replaced_one_after_the_other_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    new, now = tmp_path / "new", tmp_path / "now"
    for directory in (new, now):
        directory.mkdir()
        write_certificate(directory)
        write_authority(directory / "ca", directory.name)
    files = {"cert": "server.pem", "key": "server.key", "client_ca": "ca"}
    tls = ServerTls(ServerCertificate(*(str(now / files[name]) for name in ("cert", "key", "client_ca"))))
    first = shown(tls.context)
    for step, name in enumerate(order):
        (new / files[name]).replace(now / files[name])
        changed = tls.look(step * LOOK_MS)
        assert shown(tls.context) == first or {"cert", "key"} <= set(order[: step + 1])
        assert tls.failure is None
    assert str(now / files[order[-1]]) in changed
    assert shown(tls.context) != first
    assert tls.look(99) == ()


def test_directory_that_is_swapped_by_a_link_is_seen(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        write_certificate(tmp_path / name)
    link = tmp_path / "..data"
    link.symlink_to("1")
    tls = ServerTls(ServerCertificate(str(link / "server.pem"), str(link / "server.key")))
    first = shown(tls.context)
    (tmp_path / "next").symlink_to("2")
    os.replace(tmp_path / "next", link)
    assert tls.look(0) == (str(link / "server.pem"), str(link / "server.key"))
    assert shown(tls.context) != first


def test_files_that_do_not_fit_are_an_error_after_their_time_and_no_longer(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    tls = ServerTls(ServerCertificate(cert, key))
    first = shown(tls.context)
    os.unlink(key)
    assert (tls.look(1_000), tls.failure) == ((), None)
    assert (tls.look(1_000 + SETTLE_MS - 1), tls.failure) == ((), None)
    assert tls.look(1_000 + SETTLE_MS) == ()
    assert tls.failure == f"{key}: no such file or directory"
    assert shown(tls.context) == first
    write_certificate(tmp_path)
    assert tls.look(90_000) == (cert, key)
    assert tls.failure is None
    assert shown(tls.context) != first


def test_client_reads_its_files_at_each_connect(tmp_path: Path) -> None:
    ca = write_authority(tmp_path / "ca")
    client = ClientTls(Tls(ca=ca))
    before = client.context(0)
    assert client.context(1) is before
    write_authority(tmp_path / "ca", "ours", "theirs")
    assert len(client.context(2).get_ca_certs()) == 2
    (tmp_path / "ca").write_text("half a file")
    assert len(client.context(3).get_ca_certs()) == 2
    write_authority(tmp_path / "ca", "theirs")
    (found,) = client.context(4).get_ca_certs()
    assert "theirs" in str(found["subject"])


def test_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(FILE_BYTES_MAX))
    assert len(read_file(str(tmp_path / "file"))) == FILE_BYTES_MAX
    (tmp_path / "file").write_bytes(bytes(FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=f"file: more than {FILE_BYTES_MAX} bytes, the limit"):
        read_file(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="embedded null byte"):
        read_file("a\0b")
