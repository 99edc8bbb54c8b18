"""How a server notices new files: it looks every 5 s and when asked to, tells the ports, copies the users, and logs what it cannot use."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.runtime.daemon import Tasks
from lockstep.runtime.security.security_watch import Reloaded, SecurityWatch
from lockstep.runtime.security.server_security import OPEN
from lockstep.runtime.security.tls import ServerCertificate, ServerTls
from lockstep.runtime.security.watched_files import LOOK_MS, SETTLE_MS
from support.certificates import requiring, write_authority, write_certificate
from support.clocks import LoopClock
from support.logins import PASSWORD, with_users, write_users
from support.loops import FrozenLoop

pytestmark = pytest.mark.frozen_clock


class HereThreads:
    """Runs calls in place."""

    async def run(self, function: Callable[..., Any], *args: object) -> Any:
        return function(*args)


@dataclass
class FakeHost:
    clock: LoopClock = field(default_factory=LoopClock)
    threads: HereThreads = field(default_factory=HereThreads)


async def test_new_files_are_logged_and_new_authorities_renew_connections(
    frozen: FrozenLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cert, key = write_certificate(tmp_path)
    ca = write_authority(tmp_path / "ca")
    tasks, renewed = Tasks(), list[str]()
    security = requiring(ServerTls(ServerCertificate(cert, key, ca)))
    await SecurityWatch(security, FakeHost()).begin(tasks, lambda reason, _: renewed.append(reason))  # type: ignore[arg-type]
    await frozen.advance(LOOK_MS / 1000)
    assert caplog.messages == []
    write_certificate(tmp_path)
    await frozen.advance(LOOK_MS / 1000)
    assert caplog.messages == [f"security.reloaded files=['{cert}', '{key}']"]
    assert renewed == []
    write_authority(tmp_path / "ca", "ours", "theirs")
    await frozen.advance(LOOK_MS / 1000)
    assert renewed == ["the authorities of clients' certificates have changed"]
    await tasks.cancel_all()


async def test_files_that_changed_while_the_server_recovered_its_store_are_in_force_when_the_watch_begins(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    tasks, security = Tasks(), with_users(write_users(path, {"billing": [PASSWORD]}))
    assert security.users is not None
    before = security.users.value.digest
    write_users(path, {"shop": [PASSWORD]})
    await SecurityWatch(security, FakeHost()).begin(tasks, lambda reason, concerns: None)  # type: ignore[arg-type]
    assert security.users.value.digest != before
    await tasks.cancel_all()


async def test_files_that_stay_unusable_are_logged_once(frozen: FrozenLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = write_certificate(tmp_path)
    tasks = Tasks()
    security = requiring(ServerTls(ServerCertificate(cert, key)))
    await SecurityWatch(security, FakeHost()).begin(tasks, lambda reason, concerns: None)  # type: ignore[arg-type]
    kept = tmp_path / "kept.key"
    os.rename(key, kept)
    await frozen.advance(SETTLE_MS / 1000)
    assert caplog.messages == [], "it is being replaced"
    await frozen.advance(3 * LOOK_MS / 1000)
    (message,) = caplog.messages
    assert message.split(" then=")[0] == f"security.reload_failed reason={key}: no such file or directory"
    write_authority(tmp_path / "server.key")
    await frozen.advance(LOOK_MS / 1000)
    assert len(caplog.messages) == 2, "another reason"
    caplog.set_level("INFO")
    os.replace(kept, key)
    await frozen.advance(2 * LOOK_MS / 1000)
    assert caplog.messages[2:] == ["security.reloaded files=[]"], "they can be used again, as they were"
    await tasks.cancel_all()


async def test_copy_of_the_users_follows_the_file_while_it_can_be_used(
    frozen: FrozenLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, copy = tmp_path / "users.toml", tmp_path / "store" / "users.toml"
    tasks, security = Tasks(), replace(with_users(write_users(path, {"billing": [PASSWORD]})), users_copy=str(copy))
    watch = SecurityWatch(security, FakeHost())  # type: ignore[arg-type]
    await watch.begin(tasks, lambda reason, concerns: None)
    (message,) = caplog.messages
    assert message == f"security.copy_failed reason=[Errno 2] No such file or directory: '{copy}.new'"
    copy.parent.mkdir()
    for passwords in ({"billing": ["another password"]}, {"shop": [PASSWORD]}):
        write_users(path, passwords)
        good = path.read_bytes()
        await frozen.advance(LOOK_MS / 1000)
        assert (copy.read_bytes(), stat.S_IMODE(copy.stat().st_mode)) == (good, 0o600)
    path.write_text("[user")
    await frozen.advance(2 * SETTLE_MS / 1000)
    assert copy.read_bytes() == good
    await tasks.cancel_all()


async def test_look_that_is_asked_for_is_made_at_once_and_says_what_it_found(
    frozen: FrozenLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = write_users(tmp_path / "users.toml", {"billing": [PASSWORD]})
    tasks, security = Tasks(), with_users(path)
    assert security.users is not None
    watch = SecurityWatch(security, FakeHost())  # type: ignore[arg-type]
    assert watch.on_hangup is not None
    first = security.users.value.digest
    assert await watch.reload() == Reloaded((), None, first), "before the start is complete"
    watch.on_hangup()
    await watch.begin(tasks, lambda reason, concerns: None)
    await frozen.advance(0)
    nothing = "security.reloaded files=[]"
    assert caplog.messages == [nothing, nothing], "a hangup is not lost before the start is complete"
    write_users(tmp_path / "users.toml", {"shop": [PASSWORD]})
    watch.on_hangup()
    await frozen.advance(0)
    assert caplog.messages[2:] == [f"security.reloaded files=['{path}']"]
    second = security.users.value.digest
    assert second != first
    (tmp_path / "users.toml").write_text("[user")
    found = await watch.reload()
    assert (found.files, found.digest) == ((), second)
    assert (found.problem or "").startswith(f"{path}: it is not TOML")
    watch.on_hangup()
    await frozen.advance(2 * SETTLE_MS / 1000)
    failures = caplog.messages[3:]
    assert [message.split()[0] for message in failures] == ["security.reload_failed"] * 2, "one for each that asked, none for the time"
    assert "shop" in security.users.value.users
    await tasks.cancel_all()
    assert SecurityWatch(OPEN, FakeHost()).on_hangup is None  # type: ignore[arg-type]
