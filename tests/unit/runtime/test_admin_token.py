"""The token of the admin port: which pages need it, where, and that its file is read again."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.admin_port import HIDDEN, AdminPages, AdminPort, Health
from lockstep.runtime.security.security_watch import Reloaded
from support.http import raw_response

TOKEN, NEXT = "0123456789abcdef", "fedcba9876543210"
PAGES = ("/livez", "/readyz", "/metrics", "/log-level", "/reload")
OPEN, REFUSED, WITH_TOKEN = "open", "refused", "with the token"
GIVEN = (None, "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {NEXT}", f"Bearer {TOKEN}", f"bearer {TOKEN}")
PROBES = {"/livez": OPEN, "/readyz": OPEN}


def settings(**values: Any) -> NameserverConfig:
    return NameserverConfig(listen=("127.0.0.1:0",), **values)


def token_file(path: Path, text: str = TOKEN, mode: int = 0o600) -> str:
    path.write_text(f"{text}\n")
    path.chmod(mode)
    return str(path)


async def metrics() -> bytes:
    return b"up 1\n"


async def reload() -> Reloaded:
    return Reloaded((), None, None)


async def asked(port: AdminPort, path: str, authorization: str | None) -> tuple[int, dict[str, str], str]:
    method = "POST" if path == "/reload" else "GET"
    given = "" if authorization is None else f"Authorization: {authorization}\r\n"
    status, headers, body = await raw_response(port.address, f"{method} {path} HTTP/1.1\r\n{given}X-Lockstep: 1\r\n\r\n".encode())
    return status, headers, body.decode()


def served(config: NameserverConfig, health: Health = Health()) -> AdminPort:  # noqa: B008 immutable
    """Return the port of these settings, on this machine."""
    return AdminPort(("127.0.0.1", 0), AdminPages(lambda: health, metrics, reload), security=config.open_security())


@pytest.mark.parametrize(
    ("listen", "insecure", "token", "admin_open", "rule"),
    [
        ("127.0.0.1:0", False, False, None, dict.fromkeys(PAGES, OPEN)),
        ("127.0.0.1:0", False, True, None, {**dict.fromkeys(PAGES, WITH_TOKEN), **PROBES}),
        ("0.0.0.0:0", "plaintext", False, None, {**dict.fromkeys(PAGES, REFUSED), **PROBES}),
        ("0.0.0.0:0", "plaintext", False, "metrics", {**dict.fromkeys(PAGES, REFUSED), **PROBES, "/metrics": OPEN}),
        ("0.0.0.0:0", "plaintext", True, None, {**dict.fromkeys(PAGES, WITH_TOKEN), **PROBES}),
        ("0.0.0.0:0", "plaintext", True, "metrics", {**dict.fromkeys(PAGES, WITH_TOKEN), **PROBES, "/metrics": OPEN}),
        ("0.0.0.0:0", True, False, None, dict.fromkeys(PAGES, OPEN)),
        ("0.0.0.0:0", True, True, None, {**dict.fromkeys(PAGES, WITH_TOKEN), **PROBES}),
    ],
)
async def test_pages_that_need_the_token(
    tmp_path: Path, listen: str, insecure: Any, token: bool, admin_open: Any, rule: dict[str, str]
) -> None:
    file = token_file(tmp_path / "token") if token else None
    port = served(settings(admin_listen=listen, insecure=insecure, admin_token_file=file, admin_open=admin_open))
    await port.start()
    try:
        for path, wanted in rule.items():
            for given in GIVEN:
                status, headers, body = await asked(port, path, given)
                has_token = given is not None and given.lower().endswith(f"bearer {TOKEN}")
                expected = 200 if wanted == OPEN or (wanted == WITH_TOKEN and has_token) else 403 if wanted == REFUSED else 401
                assert (status, headers.get("www-authenticate")) == (expected, "Bearer" if expected == 401 else None), (path, given)
                assert TOKEN not in body
    finally:
        await port.stop()


async def test_probes_tell_reasons_beyond_this_machine_to_who_has_the_token_only(tmp_path: Path) -> None:
    reason = "nameserver ns1.example does not answer"
    found = {}
    for listen in ("127.0.0.1:0", "0.0.0.0:0"):
        file = None if listen.startswith("127") else token_file(tmp_path / "token")
        port = served(settings(admin_listen=listen, insecure="plaintext", admin_token_file=file), Health(unready=(reason,)))
        await port.start()
        for given in (None, f"Bearer {TOKEN}"):
            status, _, body = await asked(port, "/readyz", given)
            assert status == 503
            found[listen, given] = json.loads(body)["reasons"]
        await port.stop()
    assert found.pop(("0.0.0.0:0", None)) == [HIDDEN]
    assert set(map(tuple, found.values())) == {(reason,)}


async def test_changed_token_is_in_force_after_a_look_and_an_unusable_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "token"
    security = settings(admin_token_file=token_file(path)).open_security()
    port = AdminPort(("127.0.0.1", 0), AdminPages(Health, metrics, reload), security=security)
    await port.start()
    try:
        token_file(path, "too short")
        assert security.look(0) == ()
        assert security.problem is not None
        assert "its first line is no token" in security.problem
        assert (await asked(port, "/metrics", f"Bearer {TOKEN}"))[0] == 200
        token_file(path, NEXT)
        assert security.look(1) == (str(path),)
        assert [(await asked(port, "/metrics", f"Bearer {each}"))[0] for each in (TOKEN, NEXT)] == [401, 200]
    finally:
        await port.stop()


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("0123456789abcde", 0o600, "16 to 256 printable ASCII characters"),
        ("x" * 257, 0o600, "16 to 256"),
        ("0123456789 abcdef", 0o600, "without a space"),
        ("0123456789abcdef\u00e9", 0o600, "printable ASCII"),
        (TOKEN, 0o604, "others than its owner may read it"),
        (TOKEN, 0o620, "others than its owner may write it"),
    ],
)
def test_file_without_a_usable_token_is_refused_and_not_shown(tmp_path: Path, text: str, mode: int, words: str) -> None:
    path = token_file(tmp_path / "token", text, mode)
    with pytest.raises(ConfigError, match=words) as caught:
        settings(admin_token_file=path).open_security()
    assert path in str(caught.value)
    assert text not in str(caught.value)


def test_admin_port_that_other_machines_reach_needs_tls_and_no_word_for_logins(tmp_path: Path) -> None:
    certificate = {"tls_cert": os.devnull, "tls_key": os.devnull}
    settings(admin_listen="0.0.0.0:0", **certificate)
    settings(admin_listen="0.0.0.0:0", insecure="plaintext")
    for lacking in ({}, {**certificate, "tls": "allow"}, {"insecure": "anonymous"}):
        with pytest.raises(ConfigError, match=r"listener 'admin' .* --insecure plaintext|pass --insecure if"):
            settings(admin_listen="0.0.0.0:0", **lacking)
    assert settings(admin_token_file=token_file(tmp_path / "token")).has_secrets
