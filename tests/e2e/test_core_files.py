"""A server that has secrets in its memory leaves no core file."""

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import write_certificate
from support.logins import PASSWORD, write_users
from support.processes import program

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _core_files_are_allowed() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    if before[1] == 0:
        pytest.skip("this machine allows no core files: nothing would show who forbids them")
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.parametrize(
    ("secret", "options", "forbidden"),
    [("none", (), False), ("users", (), True), ("key", (), True), ("users", ("--core",), False)],
)
def test_server_with_secrets_leaves_no_core_file_unless_it_is_asked_to(
    secret: str, options: tuple[str, ...], forbidden: bool, tmp_path: Path
) -> None:
    cert, key = write_certificate(tmp_path)
    secrets = {
        "none": (),
        "users": ("--security", write_users(tmp_path / "users.toml", {"billing": [PASSWORD]})),
        "key": ("--tls-cert", cert, "--tls-key", key),
    }
    directory = tmp_path / "working"
    directory.mkdir()
    arguments = ("lockstep.nameserver", "--listen", "127.0.0.1:0", *secrets[secret], *options)
    with program(*arguments, event="nameserver.started", directory=directory) as running:
        limits = Path(f"/proc/{running.process.pid}/limits").read_text()
        (line,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert (line.split()[4:6] == ["0", "0"]) is forbidden
        if forbidden:
            assert running.stop(signal.SIGABRT) == -signal.SIGABRT
            assert not list(directory.iterdir())
